package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// NodeSelection is a selector by which an object of BGP chooses nodes.
type NodeSelection struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Field is that of the object: spec.nodeSelector, spec.nodeSelectors or spec.peerSelector.
	Field string `json:"field"`
	// Nodes are the names of the nodes that it selects, in order.
	Nodes []string `json:"nodes,omitempty"`
	// Labels are those that it names, in order, and Needs those without which it would select no node.
	Labels []string `json:"labels,omitempty"`
	Needs  []string `json:"needs,omitempty"`
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
	nodes, err := listedNodes.in(ctx, c)
	if err != nil {
		return nil, err
	}
	all, err := c.calicoSelections(ctx, nodes)
	configs, err2 := ciliumBGP(ctx, c, ciliumClusterConfigs)
	policies, err3 := ciliumPolicies.in(ctx, c)
	advertisements, err4 := listedAdvertisements.in(ctx, c)
	if err := failures(err, err2, c.absent(ctx, err3, ciliumPolicies.resource), c.absent(ctx, err4, listedAdvertisements.resource)); err != nil {
		return nil, err
	}
	add := func(kind, field string, of fmt.Stringer, name string, unread error, selectors ...metav1.LabelSelector) {
		s, failure := selection(nodes, selectors)
		if unread = cmp.Or(unread, failure); unread != nil {
			err = cmp.Or(err, fmt.Errorf("%s: %s: %w", of, field, unread))
		}
		s.Kind, s.Name, s.Field = kind, name, field
		all = append(all, s)
	}
	for _, o := range configs {
		if by := o.is.Spec.NodeSelector; by != nil || o.err != nil {
			add("CiliumBGPClusterConfig", "spec.nodeSelector", o, o.name, o.err, valuesOf(by)...)
		}
	}
	for _, o := range policies {
		if by := o.is.Spec.NodeSelector; by != nil || o.err != nil {
			add("CiliumBGPPeeringPolicy", "spec.nodeSelector", o, o.name, o.err, valuesOf(by)...)
		}
	}
	for _, o := range advertisements {
		if len(o.is.Spec.NodeSelectors) > 0 || o.err != nil {
			add("BGPAdvertisement", "spec.nodeSelectors", o, o.namespace+"/"+o.name, o.err, o.is.Spec.NodeSelectors...)
		}
	}
	slices.SortStableFunc(all, func(a, b NodeSelection) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all, err
}

func valuesOf(s *metav1.LabelSelector) []metav1.LabelSelector {
	if s == nil {
		return nil
	}
	return []metav1.LabelSelector{*s}
}

// selection is what any of some selectors selects.
func selection(nodes []*object[Node], selectors []metav1.LabelSelector) (NodeSelection, error) {
	var names []string
	var all []labels.Selector
	for _, by := range selectors {
		names = slices.AppendSeq(names, maps.Keys(by.MatchLabels))
		for _, e := range by.MatchExpressions {
			names = append(names, e.Key)
		}
		selector, err := metav1.LabelSelectorAsSelector(&by)
		if err != nil {
			return NodeSelection{}, err
		}
		all = append(all, selector)
	}
	slices.Sort(names)
	return selectionBy(nodes, slices.Compact(names), func(of map[string]string) bool {
		return slices.ContainsFunc(all, func(s labels.Selector) bool { return s.Matches(labels.Set(of)) })
	}), nil
}

// selectionBy is what a test selects that names some labels.
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
			of := maps.Clone(n.labels)
			delete(of, name)
			return selects(of)
		})
		if len(s.Nodes) > 0 && !stays {
			s.Needs = append(s.Needs, name)
		}
	}
	return s
}

// calicoSelections are those of BGPPeers that name no node. A peer without an address is each node that
// its peerSelector selects.
func (c *cluster) calicoSelections(ctx context.Context, nodes []*object[Node]) (all []NodeSelection, err error) {
	peers, err := calicoBGPPeers.in(ctx, c)
	if err != nil || len(peers) == 0 {
		return nil, c.absent(ctx, err, calicoBGPPeers.resource)
	}
	configurations, err := calicoBGPConfigurations.in(ctx, c)
	if err := c.absent(ctx, err, calicoBGPConfigurations.resource); err != nil {
		return nil, err
	}
	mesh := !slices.ContainsFunc(configurations, func(o *object[calicoBGPConfiguration]) bool {
		on := o.is.Spec.Mesh
		return o.name == "default" && on != nil && !*on
	})
	for _, of := range peers {
		if of.err != nil {
			return nil, of.err
		}
		for field, text := range map[string]string{"spec.nodeSelector": of.is.Spec.NodeSelector, "spec.peerSelector": of.is.Spec.PeerSelector} {
			if text == "" {
				continue
			}
			selected, names, err := calicoSelector(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", of, field, err)
			}
			s := selectionBy(nodes, names, selected)
			s.Kind, s.Name, s.Field, s.Mesh = "BGPPeer", of.name, field, mesh
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b NodeSelection) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Field, b.Field))
	})
	return all, nil
}
