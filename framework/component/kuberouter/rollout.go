package kuberouter

import "github.com/relapse-dev/relapse/framework/snapshot"

// Running is the digest of the image of kube-router on a node, by a snapshot; empty if it is not
// known. Trouble says why the container does not run; empty if it does.
func Running(s snapshot.Snapshot, node string) (digest, trouble string) {
	for _, p := range s.PodImages.Items {
		if p.OwnerKind != "DaemonSet" || p.OwnerName != Agent.Name || p.Node != node {
			continue
		}
		for _, c := range p.Containers {
			if c.Name == Agent.Name {
				digest, trouble = c.Pulled(), c.Trouble
			}
		}
	}
	return digest, trouble
}
