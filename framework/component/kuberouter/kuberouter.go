// Package kuberouter runs kube-router by the vendor's manifests, with the lab's routers for BGP peers.
package kuberouter

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"text/template"
	"time"

	"golang.org/x/mod/semver"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Untagged is the vendor's name of the image, as its manifests have it.
const Untagged = "docker.io/cloudnativelabs/kube-router"

// Image is the vendor's name of the image of a version, such as 1.5.1.
func Image(version string) string { return Untagged + ":v" + version }

// Version is the version of an Image.
func Version(image string) string { return strings.TrimPrefix(image, Untagged+":v") }

// Agent is kube-router, with one pod on each node.
var Agent = workload.SystemDaemonSet("kube-router")

// Manifest is one of the vendor's manifests, by its version.
type Manifest string

// The vendor's daemonset/kubeadm-kuberouter.yaml. They differ in RBAC (version 2 lists EndpointSlices) and mounts.
const (
	V1 Manifest = "v1.5.1"
	V2 Manifest = "v2.1.0"
)

// ManifestOf is the manifest that a version is deployed with.
func ManifestOf(version string) Manifest {
	if semver.Compare("v"+version, "v2.0.0") >= 0 {
		return V2
	}
	return V1
}

// KubeRouter is a configuration of kube-router.
type KubeRouter struct {
	Manifest Manifest
	// Image and PullPolicy are set in the manifest, which has neither a version nor a
	// digest. Pin names the image by its current digest in the lab's registry instead.
	Image      string
	Pin        bool
	PullPolicy corev1.PullPolicy
	// IBGP has the nodes peer with each other: --enable-ibgp.
	IBGP bool
	// AtOnce replaces the pods of all nodes at once, as an operator does in an outage.
	AtOnce bool
	// OnDelete replaces no pod: the caller deletes one after the other.
	OnDelete bool

	// RestartTime is how long a router keeps the routes of a node whose kube-router restarts (by default 90 s),
	// CacheSyncTimeout how long kube-router waits for its caches before it ends (1 min).
	RestartTime, CacheSyncTimeout time.Duration
}

//go:embed kube-router.yaml
var manifestYAML string

var manifestTemplate = template.Must(template.New("kube-router").Parse(manifestYAML))

func (k KubeRouter) manifest(apiServer netip.AddrPort, peer topology.BGPPeer) (string, error) {
	return workload.Render(manifestTemplate, struct {
		KubeRouter
		V2        bool
		APIServer netip.AddrPort
		Peer      topology.BGPPeer
	}{k, k.Manifest == V2, apiServer, peer})
}

// Apply is the action that applies the configuration and waits until each node has started a pod of it, ready or not.
func (k KubeRouter) Apply(ctx context.Context, r *framework.Run) error {
	return framework.InOrder(k.Declare, RolledOut)(ctx, r)
}

// Declare is Apply without the wait.
func (k KubeRouter) Declare(ctx context.Context, r *framework.Run) error {
	c := labaccess.Cluster(r)
	if k.Pin {
		digest, err := Digest(ctx, r, k.Image)
		if err != nil {
			return err
		}
		k.Image = Untagged + "@" + digest
	}
	text, err := k.manifest(c.APIServer(), r.Topology.BGPPeers()[0])
	if err != nil {
		return err
	}
	return workload.Apply(ctx, c, text)
}

// rollsWithin bounds a rollout, node by node, with a pull of some 60 MB on each.
const rollsWithin = 2 * time.Minute

// RolledOut is the action that waits until each node of the cluster has started a pod of the
// newest configuration. A node that cannot pull the image ends the wait.
func RolledOut(ctx context.Context, r *framework.Run) error {
	c := labaccess.Cluster(r)
	return Agent.Started(ctx, c, c.Nodes(), rollsWithin)
}

// RangesWritten waits until kube-router has written each node's pod range for CNI: without it no pod gets an address.
func RangesWritten(ctx context.Context, r *framework.Run) error {
	return labaccess.Lab(r).EachNode(ctx, labaccess.Cluster(r).Nodes(), func(ctx context.Context, node *kindlab.Node) error {
		return await.Until(ctx, "kube-router's CNI configuration", 100*time.Millisecond, 30*time.Second,
			func(ctx context.Context) (bool, string, error) {
				text, err := node.Exec(ctx, "cat", "/etc/cni/net.d/10-kuberouter.conflist")
				return strings.Contains(text, `"subnet"`), strings.TrimSpace(text), err
			})
	})
}

// PodDeleted is the action that deletes kube-router's pod of a node, if there is one, without a grace period.
func PodDeleted(node string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		pods, err := Agent.Pods.List(ctx, labaccess.Cluster(r))
		if err != nil {
			return err
		}
		kube := labaccess.Cluster(r).Kube()
		for _, p := range pods {
			if p.Spec.NodeName != node {
				continue
			}
			if err := client.IgnoreNotFound(kube.Delete(ctx, &p, client.GracePeriodSeconds(0))); err != nil {
				return fmt.Errorf("deleting kube-router's pod on %s: %w", node, err)
			}
		}
		return nil
	}
}

// Log is the log of all kube-routers of a node, as its kubelet keeps it.
func Log(ctx context.Context, node *kindlab.Node) (string, error) {
	return node.Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_kube-router-*/kube-router/*.log")
}

// Digest asks the lab's registry for the current digest of an image.
func Digest(ctx context.Context, r *framework.Run, image string) (string, error) {
	return registry.New(labaccess.Lab(r).Registry().Addr.String()).Resolve(ctx, image)
}

// LatestMoved is the action that makes the name without tag refer to an image, as the vendor does with each release.
func LatestMoved(image string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		_, err := registry.New(labaccess.Lab(r).Registry().Addr.String()).Move(ctx, Untagged, image)
		return err
	}
}

// LatestPulled pulls an image onto a node, and makes the name without tag refer to it there, whatever the registry has.
func LatestPulled(node, image string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		_, err := labaccess.Lab(r).Node(node).Exec(ctx, "sh", "-c", fmt.Sprintf(
			"ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d %[1]s >/dev/null && ctr -n k8s.io images tag --force %[1]s %[2]s:latest",
			image, Untagged))
		if err != nil {
			return fmt.Errorf("pulling %s on %s and tagging it latest: %w", image, node, err)
		}
		return nil
	}
}

// Deleted is the action that removes kube-router. What it wrote to the nodes stays.
func Deleted(ctx context.Context, r *framework.Run) error {
	return Agent.Delete(ctx, labaccess.Cluster(r))
}

// Clean is the action that removes kube-router, and brings each node to the state of a new
// machine: no CNI configuration, no bridge, no rules, and none of kube-router's images.
func Clean(ctx context.Context, r *framework.Run) error {
	if err := Deleted(ctx, r); err != nil {
		return err
	}
	return labaccess.Lab(r).EachNode(ctx, labaccess.Cluster(r).Nodes(), func(ctx context.Context, node *kindlab.Node) error {
		_, err := node.Exec(ctx, "sh", "-c", cleanNode)
		return err
	})
}

// cleanNode also succeeds on a node that has nothing to clean. Kube-router's routes to other nodes' pods are of
// protocol 17: left behind, they carry traffic between pods that a later version no longer carries.
const cleanNode = `set -e
rm -rf /etc/cni/net.d/10-kuberouter.conflist /var/lib/cni/networks
ip link del kube-bridge 2>/dev/null || true
while ip rule del table 77 2>/dev/null; do :; done
ip route flush table 77 2>/dev/null || true
ip route flush proto 17
iptables -w -F; iptables -w -X
if iptables-legacy-save | grep -q KUBE-; then iptables-legacy -w -F; iptables-legacy -w -X; fi
iptables-save -t nat | grep -v kube-router | iptables-restore -w -T nat
crictl --timeout 30s images -q ` + Untagged + ` | sort -u | xargs -r crictl --timeout 30s rmi >/dev/null`

// Running is the digest of kube-router's image on a node, by a snapshot; empty if it is not known. trouble says why the
// container does not run; empty if it does.
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
