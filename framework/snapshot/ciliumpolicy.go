package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ciliumBGPPolicy is what is read of Cilium's type CiliumBGPPeeringPolicy
// (github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2alpha1, 1.12 to 1.17).
type ciliumBGPPolicy struct {
	Spec struct {
		NodeSelector   *metav1.LabelSelector `json:"nodeSelector"`
		VirtualRouters []ciliumBGPRouter     `json:"virtualRouters"`
	} `json:"spec"`
}

// ciliumBGPRouter is what nodes announce to some neighbours.
type ciliumBGPRouter struct {
	ExportPodCIDR         bool                  `json:"exportPodCIDR"`
	PodIPPoolSelector     *metav1.LabelSelector `json:"podIPPoolSelector"`
	ServiceSelector       *metav1.LabelSelector `json:"serviceSelector"`
	ServiceAdvertisements []string              `json:"serviceAdvertisements"`
	Neighbors             []struct {
		Families []struct {
			AFI string `json:"afi"`
		} `json:"families"`
	} `json:"neighbors"`
}

var ciliumPolicies = customList[ciliumBGPPolicy](
	schema.GroupVersionResource{Group: "cilium.io", Version: "v2alpha1", Resource: "ciliumbgppeeringpolicies"}, "CiliumBGPPeeringPolicies")

// ciliumBGPPolicies are what Cilium's nodes are to announce by CiliumBGPPeeringPolicies: one item
// for each virtual router, by the rules of the agent (pkg/bgpv1/manager/reconciler).
func (c *cluster) ciliumBGPPolicies(ctx context.Context) ([]BGPAdvertisement, error) {
	policies, err := ciliumPolicies.whole(ctx, c)
	if err != nil || len(policies) == 0 {
		return nil, err
	}
	nodes, err := listedNodes.list(ctx, c)
	services, err2 := listedServices.list(ctx, c)
	pools, err3 := ciliumBGP(ctx, c, ciliumPodPools)
	if err := failures(err, err2, err3); err != nil {
		return nil, err
	}
	var all []BGPAdvertisement
	for _, policy := range policies {
		announce, err := selectedNodes(nodes, policy.value.Spec.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("%s: spec.nodeSelector: %w", policy, err)
		}
		for _, router := range policy.value.Spec.VirtualRouters {
			items, err := router.advertisements(BGPAdvertisement{Name: policy.name, Speaker: CiliumBGP, Nodes: announce}, services, pools)
			if err != nil {
				return nil, fmt.Errorf("%s: a selector: %w", policy, err)
			}
			all = append(all, items...)
		}
	}
	return all, nil
}

// selectedNodes are the names of the nodes that a selector selects, in order. None selects all.
func selectedNodes(nodes []*object[Node], by *metav1.LabelSelector) (names []string, err error) {
	for _, n := range nodes {
		selected, err := selects(by, n.labels)
		if err != nil {
			return nil, err
		}
		if selected || by == nil {
			names = append(names, n.name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// advertisements are the pods' ranges and Services that nodes announce; base says who announces them.
func (r ciliumBGPRouter) advertisements(
	base BGPAdvertisement, services []*object[Service], pools []*object[ciliumPodIPPool]) ([]BGPAdvertisement, error) {
	families := map[string]bool{}
	for _, n := range r.Neighbors {
		for _, f := range n.Families {
			families[f.AFI] = true
		}
		if len(n.Families) == 0 { // the default
			families["ipv4"], families["ipv6"] = true, true
		}
	}
	base.Families = slices.Sorted(maps.Keys(families))
	base.PodCIDRs = r.ExportPodCIDR
	var err error
	if r.PodIPPoolSelector != nil {
		if _, base.PodPools, err = (ciliumBGPEntry{Type: "CiliumPodIPPool", Selector: r.PodIPPoolSelector}).pods(pools); err != nil {
			return nil, err
		}
	}
	if len(r.ServiceAdvertisements) == 0 {
		r.ServiceAdvertisements = []string{"LoadBalancerIP"}
	}
	entry := ciliumBGPEntry{Type: "Service", Selector: r.ServiceSelector, Service: &ciliumBGPServices{Addresses: r.ServiceAdvertisements}}
	shared, alone, err := entry.addresses(services, families)
	base.Ranges = slices.Concat(shared, alone)
	return []BGPAdvertisement{base}, err
}
