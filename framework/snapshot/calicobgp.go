package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/topology/each"
)

// CalicoBGP is the Speaker of what Calico announces of Services.
const CalicoBGP = "calico"

// calicoBGPConfiguration is what is read of Calico's type BGPConfiguration
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoBGPConfiguration struct {
	Spec struct {
		Mesh            *bool `json:"nodeToNodeMeshEnabled"` // by default it is on
		LoadBalancerIPs []struct {
			CIDR string `json:"cidr"`
		} `json:"serviceLoadBalancerIPs"`
	} `json:"spec"`
}

var calicoBGPConfigurations = customList[calicoBGPConfiguration](calicoGroup.WithResource("bgpconfigurations"), "BGPConfigurations")

// calicoDefault is the BGPConfiguration of all nodes, empty if there is none. No other one can name ranges.
func (c *cluster) calicoDefault(ctx context.Context) (*object[calicoBGPConfiguration], error) {
	all, err := calicoBGPConfigurations.list(ctx, c)
	config, there := each.First(all, func(o *object[calicoBGPConfiguration]) bool { return o.name == "default" })
	if !there {
		return &object[calicoBGPConfiguration]{}, c.absent(ctx, err, calicoBGPConfigurations.resource)
	}
	return config, config.err
}

// calicoAdvertisements are the ranges of LoadBalancer addresses that Calico's nodes are to announce, by the
// BGPConfiguration default: one item for each range. Every node announces the range itself, except nodes that load
// balancers must not use. A node with an endpoint of a Service of policy Local announces its address as well
// (confd/pkg/backends/calico/routes.go).
func (c *cluster) calicoAdvertisements(ctx context.Context) ([]BGPAdvertisement, error) {
	config, err := c.calicoDefault(ctx)
	if err != nil {
		return nil, err
	}
	var all []BGPAdvertisement
	for _, block := range config.value.Spec.LoadBalancerIPs {
		r, err := ParseAddressRange(block.CIDR)
		if err != nil {
			return nil, fmt.Errorf("%s: spec.serviceLoadBalancerIPs: %w", config, err)
		}
		b := BGPAdvertisement{Name: "serviceLoadBalancerIPs " + block.CIDR, Speaker: CalicoBGP, Ranges: []AddressRange{r}}
		if p, err := netip.ParsePrefix(block.CIDR); err == nil && p.Addr().Is4() {
			b.AggregationLength = p.Bits()
		} else if err == nil {
			b.AggregationLengthV6 = p.Bits()
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, nil
	}
	nodes, err := listedNodes.list(ctx, c)
	if err != nil {
		return nil, err
	}
	nodes = each.Where(nodes, func(n *object[Node]) bool { return !n.value.Excluded })
	announce := slices.Sorted(slices.Values(each.Of(nodes, func(n *object[Node]) string { return n.name })))
	for i := range all {
		all[i].Nodes = announce
	}
	return all, nil
}
