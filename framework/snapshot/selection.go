package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/relapse-dev/relapse/topology/each"
)

// NodeSelection is a selector by which an object of BGP chooses nodes. An object without a selector chooses all.
type NodeSelection struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Field is the selector's field in the object: spec.nodeSelector, spec.nodeSelectors or spec.peerSelector.
	Field string `json:"field"`
	// Nodes are the names of the nodes that it selects, in order.
	Nodes []string `json:"nodes,omitempty"`
	// Labels are the labels that the selector names, in order, and Needs the labels without which it would select no node.
	Labels []string `json:"labels,omitempty"`
	Needs  []string `json:"needs,omitempty"`
	// Of are the nodes that have what spec.peerSelector selects as peers, in order.
	Of []string `json:"of,omitempty"`
	// Mesh is set for the peers of Calico whose nodes are also peers of each other, whatever is selected.
	Mesh bool `json:"mesh,omitempty"`
}

// NodeSelections is the source of the selectors of nodes in Calico's BGPPeers, in Cilium's
// CiliumBGPClusterConfigs and CiliumBGPPeeringPolicies, and in MetalLB's BGPAdvertisements, in order of
// kind and name.
var NodeSelections = clusterList("selectors of nodes for BGP", []*resource{
	calicoBGPPeers.resource, calicoBGPConfigurations.resource, ciliumClusterConfigs[0].resource, ciliumClusterConfigs[1].resource,
	ciliumPolicies.resource, listedAdvertisements.resource, listedNodes.resource, listedDefinitions.resource,
}, (*cluster).nodeSelections, func(s *Snapshot) *List[NodeSelection] { return &s.NodeSelections }, nil)

func (c *cluster) nodeSelections(ctx context.Context) ([]NodeSelection, error) {
	nodes, err := listedNodes.list(ctx, c)
	if err != nil {
		return nil, err
	}
	all, err := c.calicoSelections(ctx, nodes)
	configs, err2 := ciliumBGP(ctx, c, ciliumClusterConfigs)
	policies, err3 := ciliumPolicies.list(ctx, c)
	advertisements, err4 := listedAdvertisements.list(ctx, c)
	err3, err4 = c.absent(ctx, err3, ciliumPolicies.resource), c.absent(ctx, err4, listedAdvertisements.resource)
	if err := failures(err, err2, err3, err4); err != nil {
		return nil, err
	}
	add := func(kind, field string, owner fmt.Stringer, name string, unread error, selectors ...metav1.LabelSelector) {
		s, failure := selection(nodes, selectors)
		if unread = cmp.Or(unread, failure); unread != nil {
			err = cmp.Or(err, fmt.Errorf("%s: %s: %w", owner, field, unread))
		}
		s.Kind, s.Name, s.Field = kind, name, field
		all = append(all, s)
	}
	every := &metav1.LabelSelector{} // where there is none, all are selected
	for _, o := range configs {
		add("CiliumBGPClusterConfig", nodeSelector, o, o.name, o.err, *cmp.Or(o.value.Spec.NodeSelector, every))
	}
	for _, o := range policies {
		add("CiliumBGPPeeringPolicy", nodeSelector, o, o.name, o.err, *cmp.Or(o.value.Spec.NodeSelector, every))
	}
	for _, o := range advertisements {
		add("BGPAdvertisement", "spec.nodeSelectors", o, o.namespace+"/"+o.name, o.err, o.value.nodeSelectors()...)
	}
	slices.SortStableFunc(all, func(a, b NodeSelection) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all, err
}

const (
	nodeSelector = "spec.nodeSelector"
	peerSelector = "spec.peerSelector"
)

// selection has the nodes that any of some selectors selects.
func selection(nodes []*object[Node], selectors []metav1.LabelSelector) (NodeSelection, error) {
	var names []string
	var all []labels.Selector
	for _, by := range selectors {
		names = slices.AppendSeq(names, maps.Keys(by.MatchLabels))
		names = append(names, each.Of(by.MatchExpressions, func(e metav1.LabelSelectorRequirement) string { return e.Key })...)
		selector, err := metav1.LabelSelectorAsSelector(&by)
		if err != nil {
			return NodeSelection{}, err
		}
		all = append(all, selector)
	}
	return selectionBy(nodes, each.Once(names), func(labelSet map[string]string) bool {
		return slices.ContainsFunc(all, func(s labels.Selector) bool { return s.Matches(labels.Set(labelSet)) })
	}), nil
}

// selectionBy has the nodes that a test of these labels selects.
func selectionBy(nodes []*object[Node], names []string, selects labelTest) NodeSelection {
	s := NodeSelection{Labels: names}
	for _, n := range nodes {
		if selects(n.labels) {
			s.Nodes = append(s.Nodes, n.name)
		}
	}
	slices.Sort(s.Nodes)
	for _, name := range names {
		stays := slices.ContainsFunc(nodes, func(n *object[Node]) bool {
			rest := maps.Clone(n.labels)
			delete(rest, name)
			return selects(rest)
		})
		if len(s.Nodes) > 0 && !stays {
			s.Needs = append(s.Needs, name)
		}
	}
	return s
}

// calicoSelections are the selectors of BGPPeers. Without an address, peerSelector selects the peers.
func (c *cluster) calicoSelections(ctx context.Context, nodes []*object[Node]) (all []NodeSelection, err error) {
	peers, err := calicoBGPPeers.whole(ctx, c)
	if err != nil || len(peers) == 0 {
		return nil, err
	}
	mesh, err := c.calicoMesh(ctx, nodes)
	if err != nil {
		return nil, err
	}
	nodes = calicoNodes(nodes)
	for _, peer := range peers {
		by, err := peer.value.selection(nodes)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", peer, nodeSelector, err)
		}
		by.Kind, by.Name, by.Field, by.Mesh = "BGPPeer", peer.name, nodeSelector, mesh
		all = append(all, by)
		if peer.value.Spec.PeerSelector == "" {
			continue
		}
		to, err := calicoSelection(nodes, peer.value.Spec.PeerSelector)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", peer, peerSelector, err)
		}
		to.Kind, to.Name, to.Field, to.Mesh, to.Of = "BGPPeer", peer.name, peerSelector, mesh, by.Nodes
		all = append(all, to)
	}
	return all, nil
}

func (p calicoPeer) selection(nodes []*object[Node]) (NodeSelection, error) {
	if p.Spec.Node == "" {
		return calicoSelection(nodes, cmp.Or(p.Spec.NodeSelector, "all()"))
	}
	if slices.ContainsFunc(nodes, func(n *object[Node]) bool { return n.name == p.Spec.Node }) {
		return NodeSelection{Nodes: []string{p.Spec.Node}}, nil
	}
	return NodeSelection{}, nil
}

func calicoSelection(nodes []*object[Node], text string) (NodeSelection, error) {
	selected, names, err := calicoSelector(text)
	if err != nil {
		return NodeSelection{}, err
	}
	return selectionBy(nodes, names, selected), nil
}

// calicoMesh reports whether Calico's nodes are peers of each other: by default, but for route reflectors.
func (c *cluster) calicoMesh(ctx context.Context, nodes []*object[Node]) (bool, error) {
	config, err := c.calicoDefault(ctx)
	if err != nil {
		return false, err
	}
	reflects := slices.ContainsFunc(nodes, func(n *object[Node]) bool { return n.value.Calico.RouteReflector != "" })
	return !reflects && (config.value.Spec.Mesh == nil || *config.value.Spec.Mesh), nil
}

// calicoNodes are the nodes, with the labels that only Calico has of them beside Kubernetes'.
func calicoNodes(nodes []*object[Node]) (all []*object[Node]) {
	for _, n := range nodes {
		node := *n
		node.labels = map[string]string{}
		maps.Copy(node.labels, n.value.Calico.Labels)
		maps.Copy(node.labels, n.labels)
		all = append(all, &node)
	}
	return all
}
