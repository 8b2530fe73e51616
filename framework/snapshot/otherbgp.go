package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// OtherBGP is the Speaker of what Antrea, or frr-k8s by a configuration that is not MetalLB's, announces of pods.
const OtherBGP = "other"

// podPolicy is what is read of Antrea's type BGPPolicy (antrea.io/antrea/pkg/apis/crd/v1alpha1) and of frr-k8s'
// FRRConfiguration (github.com/metallb/frr-k8s/api/v1beta1).
type podPolicy struct {
	Spec struct {
		NodeSelector   metav1.LabelSelector `json:"nodeSelector"`
		Advertisements struct {
			Pod *struct{} `json:"pod"`
		} `json:"advertisements"`
		BGP struct {
			Routers []struct {
				Prefixes []string `json:"prefixes"`
			} `json:"routers"`
		} `json:"bgp"`
	} `json:"spec"`
}

var podPolicies = []listed[podPolicy]{
	customList[podPolicy](schema.GroupVersionResource{
		Group: "crd.antrea.io", Version: "v1alpha1", Resource: "bgppolicies"}, "BGPPolicies of Antrea"),
	customList[podPolicy](schema.GroupVersionResource{
		Group: "frrk8s.metallb.io", Version: "v1beta1", Resource: "frrconfigurations"}, "FRRConfigurations"),
}

// otherAdvertisements are the nodes that are to announce their Node.spec.podCIDRs by a podPolicy.
func (c *cluster) otherAdvertisements(ctx context.Context) (all []BGPAdvertisement, err error) {
	for _, source := range podPolicies {
		policies, err := source.whole(ctx, c)
		if err != nil {
			return nil, err
		}
		nodes, err := listedNodes.list(ctx, c)
		if err != nil && len(policies) > 0 {
			return nil, err
		}
		for _, p := range policies {
			announcing := slices.DeleteFunc(slices.Clone(nodes), func(n *object[Node]) bool { return !p.value.announces(n.value.PodCIDRs) })
			names, err := selectedNodes(announcing, &p.value.Spec.NodeSelector)
			if err != nil {
				return nil, fmt.Errorf("%s: spec.nodeSelector: %w", p, err)
			}
			if len(names) > 0 {
				all = append(all, BGPAdvertisement{Namespace: p.namespace, Name: p.name, Speaker: OtherBGP, PodCIDRs: true, Nodes: names})
			}
		}
	}
	return all, nil
}

func (p podPolicy) announces(ranges []netip.Prefix) bool {
	for _, router := range p.Spec.BGP.Routers {
		for _, text := range router.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err == nil && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return prefix.Overlaps(r) && prefix.Bits() <= r.Bits() }) {
				return true
			}
		}
	}
	return p.Spec.Advertisements.Pod != nil
}
