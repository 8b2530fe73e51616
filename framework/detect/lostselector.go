package detect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Kinds of the findings of LostSelector.
const (
	// SelectsNoNode is active: no object of a kind selects a node any more.
	SelectsNoNode = "selects-no-node"
	// RemovedLabel is latent: a selector selects nodes by a label that an upgrade removes.
	RemovedLabel = "removed-label"
)

// LostSelector finds objects of BGP that choose nodes by labels, and choose none. An object that selects no
// node beside others of its kind that select some may be of a rack without nodes, and is no finding.
type LostSelector struct{}

// removedLabels are those that kubeadm has set and removes at an upgrade (to 1.24 and 1.25: kubeadm,
// KEP-2067), or that the API has replaced (k8s.io/api/core/v1/well_known_labels.go).
var removedLabels = []string{
	"node-role.kubernetes.io/master", "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
}

// Name implements Detector.
func (LostSelector) Name() string { return "lost-selector" }

// Reads implements Detector.
func (LostSelector) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.NodeSelections, snapshot.Nodes}
}

// Detect implements Detector. There is one finding for each selector, in their order.
func (LostSelector) Detect(history []snapshot.Snapshot, _ *Index) (findings []Finding) {
	now := history[len(history)-1]
	if len(now.Nodes.Items) == 0 {
		return nil
	}
	type group struct{ kind, field string }
	selecting := map[group]bool{}
	for _, s := range now.NodeSelections.Items {
		of := group{s.Kind, s.Field}
		selecting[of] = selecting[of] || len(s.Nodes) > 0
	}
	for _, s := range now.NodeSelections.Items {
		object := Named(s.Kind + " " + s.Name)
		switch removed := removedOf(s, now.Nodes.Items); {
		case !selecting[group{s.Kind, s.Field}] && !(s.Mesh && s.Field == peerSelector):
			findings = append(findings, Finding{
				Kind: SelectsNoNode, State: Active, Object: object,
				Says: fmt.Sprintf("%s selects no node: its %s names %s. No other %s selects one by %s: %s.",
					object, s.Field, labelsOf(s.Labels), s.Kind, s.Field, effect(s)),
			})
		case len(removed) > 0:
			findings = append(findings, Finding{
				Kind: RemovedLabel, State: Latent, Object: object,
				Says: fmt.Sprintf("%s selects %s by the label %s (%s). Kubernetes has replaced that label, and an upgrade removes it from nodes: then the object selects no node.",
					object, and(s.Nodes), and(removed), s.Field),
			})
		}
	}
	return findings
}

// peerSelector is the field by which a BGPPeer of Calico selects the nodes that are peers.
const peerSelector = "spec.peerSelector"

func labelsOf(labels []string) string {
	if len(labels) == 0 {
		return "no label"
	}
	return and(labels)
}

// effect is what follows if no object of a kind selects a node.
func effect(s snapshot.NodeSelection) string {
	if s.Kind == "BGPAdvertisement" {
		return "no node announces the addresses of Services by BGP"
	}
	if s.Field == peerSelector {
		return "nodes have no BGP session with such a peer, and the mesh of nodes is off"
	}
	return "no node has a BGP session by it"
}

// removedOf are the labels of a selector that an upgrade removes from the nodes that it selects. k3s and
// RKE2 still set them.
func removedOf(s snapshot.NodeSelection, nodes []snapshot.Node) (labels []string) {
	kept := slices.ContainsFunc(nodes, func(n snapshot.Node) bool {
		return slices.Contains(s.Nodes, n.Name) && (strings.Contains(n.Kubelet, "+k3s") || strings.Contains(n.Kubelet, "+rke2"))
	})
	for _, label := range s.Needs {
		if !kept && slices.Contains(removedLabels, label) {
			labels = append(labels, label)
		}
	}
	return labels
}
