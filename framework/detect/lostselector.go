package detect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Kinds of the findings of LostSelector.
const (
	// SelectsNoNode is active: no object of a kind selects a node any more.
	SelectsNoNode = "selects-no-node"
	// RemovedLabel is latent: a selector selects nodes by a label that kubeadm no longer sets.
	RemovedLabel = "removed-label"
)

// LostSelector finds objects of BGP that choose nodes by labels, and choose none: Calico's BGPPeers,
// Cilium's CiliumBGPClusterConfigs and CiliumBGPPeeringPolicies, and MetalLB's BGPAdvertisements (not its
// BGPPeers). An object that selects no node beside others of its kind that select some may be of a rack
// without nodes, and is no finding; nor is one of Calico's where the nodes have a mesh.
type LostSelector struct{}

// removedLabel is a label that kubeadm has set up to 1.23, and that its upgrade to 1.24 removes (KEP-2067).
const removedLabel = "node-role.kubernetes.io/master"

func (LostSelector) Name() string { return "lost-selector" }

func (LostSelector) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.NodeSelections, snapshot.Nodes}
}

// Detect implements Detector. There is one finding for each selector, in their order.
func (LostSelector) Detect(history []snapshot.Snapshot, _ *Index) (findings []Finding) {
	now := history[len(history)-1]
	selections := now.NodeSelections.Items
	for _, s := range selections {
		object := Named(s.Kind + " " + s.Name + ", " + s.Field)
		switch {
		case s.Mesh || len(now.Nodes.Items) == 0:
		case len(s.Nodes) == 0 && !replaced(s, selections):
			findings = append(findings, Finding{
				Kind: SelectsNoNode, State: Active, Object: object,
				Says: fmt.Sprintf("%s %s selects no node by the labels that its %s names (%s), and no other object selects one in its place: %s.",
					s.Kind, s.Name, s.Field, cmp.Or(and(s.Labels), "none"), effect(s)),
			})
		case slices.Contains(s.Needs, removedLabel) && ofKubeadm(s, now.Nodes.Items):
			findings = append(findings, Finding{
				Kind: RemovedLabel, State: Latent, Object: object,
				Says: fmt.Sprintf("%s %s selects %s by the label %s (%s). kubeadm sets that label no longer since 1.24, "+
					"and its upgrade to 1.24 removes it. Once these nodes are upgraded or made anew, the object selects no node.",
					s.Kind, s.Name, and(s.Nodes), removedLabel, s.Field),
			})
		}
	}
	return findings
}

// replaced reports whether other objects do what a selector that selects no node was to do. The peers of a selector
// of Calico are replaced if each node that lacks them has other peers.
func replaced(s snapshot.NodeSelection, all []snapshot.NodeSelection) bool {
	if s.Field != peerSelector {
		return slices.ContainsFunc(all, func(o snapshot.NodeSelection) bool {
			return vendor(o) == vendor(s) && o.Field == s.Field && len(o.Nodes) > 0
		})
	}
	return !slices.ContainsFunc(s.Of, func(node string) bool {
		return !slices.ContainsFunc(all, func(o snapshot.NodeSelection) bool {
			switch {
			case o.Kind != s.Kind || o.Name == s.Name:
				return false
			case o.Field == peerSelector:
				return len(o.Nodes) > 0 && slices.Contains(o.Of, node)
			}
			byNodes := slices.ContainsFunc(all, func(p snapshot.NodeSelection) bool {
				return p.Kind == o.Kind && p.Name == o.Name && p.Field == peerSelector
			})
			return !byNodes && slices.Contains(o.Nodes, node)
		})
	})
}

// peerSelector is the field by which a BGPPeer of Calico selects the nodes that are peers.
const peerSelector = "spec.peerSelector"

// vendor is the same for both kinds of Cilium: the later kind replaces the earlier one.
func vendor(s snapshot.NodeSelection) string {
	if strings.HasPrefix(s.Kind, "Cilium") {
		return "Cilium"
	}
	return s.Kind
}

func effect(s snapshot.NodeSelection) string {
	switch {
	case s.Kind == "BGPAdvertisement":
		return "no node announces the addresses of Services by BGP"
	case s.Field == peerSelector:
		return "there is no BGP session of " + and(s.Of) + " with such a peer"
	}
	return "no node has a BGP session by it"
}

// ofKubeadm reports whether no selected node is of a distribution that sets labels by itself, as k3s, RKE2
// and OpenShift do: their versions of kubelet have a suffix.
func ofKubeadm(s snapshot.NodeSelection, nodes []snapshot.Node) bool {
	return !slices.ContainsFunc(nodes, func(n snapshot.Node) bool {
		return slices.Contains(s.Nodes, n.Name) && (n.Kubelet == "" || strings.ContainsAny(n.Kubelet, "+-"))
	})
}
