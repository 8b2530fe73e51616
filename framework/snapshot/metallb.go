package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// BGPAdvertisement is a BGPAdvertisement of MetalLB (metallb.io/v1beta1), an entry of a
// CiliumBGPAdvertisement (cilium.io/v2), or a range of Calico's BGPConfiguration, with what
// selectors select: which nodes announce which addresses.
type BGPAdvertisement struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Speaker is whose it is: CiliumBGP, CalicoBGP, OtherBGP, or MetalLB's if empty.
	Speaker string `json:"speaker,omitempty"`
	// Ranges are those of MetalLB's pools or of Calico's configuration, or the addresses of
	// Services that Cilium selects, and Nodes the names of its nodes, in order.
	Ranges []AddressRange `json:"ranges,omitempty"`
	Nodes  []string       `json:"nodes,omitempty"`
	// PodCIDRs is set if the nodes announce their CiliumNodes' spec.ipam.podCIDRs, and PodPools
	// are the CiliumPodIPPools whose ranges on them they announce.
	PodCIDRs bool     `json:"pod_cidrs,omitempty"`
	PodPools []string `json:"pod_pools,omitempty"`
	// Families are the address families, ipv4 and ipv6, for which peers of Cilium's nodes are told;
	// empty: not known.
	Families []string `json:"families,omitempty"`
	// Unselected is set for a CiliumBGPAdvertisement that the peers of no CiliumBGPClusterConfig
	// select, which has no Nodes, and for a CiliumBGPClusterConfig whose peers select none.
	Unselected bool `json:"unselected,omitempty"`
	// Peers are the names of MetalLB's BGPPeers that alone are told; empty: all are.
	Peers []string `json:"peers,omitempty"`
	// AggregationLength is of the prefixes that are announced of IPv4 addresses, and
	// AggregationLengthV6 of those of IPv6. Zero: the addresses alone (/32, /128), which is the
	// default.
	AggregationLength   int `json:"aggregation_length,omitempty"`
	AggregationLengthV6 int `json:"aggregation_length_v6,omitempty"`
}

// AddressRange is from the first to the last address, both included.
type AddressRange struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

// Contains reports whether an address is in the pool.
func (p AddressPool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r AddressRange) bool { return r.Contains(a) })
}

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Serves reports whether the advertisement may be of a Service. MetalLB leaves a Service with a class to another load
// balancer, unless its speaker was told that class: then its controller has given the address.
func (b BGPAdvertisement) Serves(s Service) bool {
	return b.Speaker != "" || s.Class == "" || s.MetalLBPool != ""
}

// Prefix is what is announced of an address.
func (b BGPAdvertisement) Prefix(a netip.Addr) netip.Prefix {
	length := b.AggregationLength
	if !a.Is4() {
		length = b.AggregationLengthV6
	}
	if length <= 0 || length > a.BitLen() {
		length = a.BitLen()
	}
	return netip.PrefixFrom(a, length).Masked()
}

// BGPAdvertisements is the source of the BGPAdvertisements of MetalLB, in order of namespace and name, and of the
// advertisements of Cilium and Calico. A cluster that does not know a resource has none. It also lists what they
// refer to: IPAddressPools, Cilium's configurations of BGP and CiliumPodIPPools, Calico's BGPConfigurations, Nodes
// and Services.
var BGPAdvertisements = clusterList("BGP advertisements of MetalLB, Cilium and Calico", []*resource{
	listedAdvertisements.resource, listedPools.resource, listedNodes.resource, listedServices.resource,
	ciliumClusterConfigs[0].resource, ciliumPeerConfigs[0].resource, ciliumAdvertisements[0].resource,
	ciliumClusterConfigs[1].resource, ciliumPeerConfigs[1].resource, ciliumAdvertisements[1].resource,
	ciliumPodPools[0].resource, ciliumPodPools[1].resource, ciliumPolicies.resource, calicoBGPConfigurations.resource,
	listedDefinitions.resource, podPolicies[0].resource, podPolicies[1].resource,
}, (*cluster).bgpAdvertisements,
	func(s *Snapshot) *List[BGPAdvertisement] { return &s.BGPAdvertisements }, BGPAdvertisement.state)

func (c *cluster) bgpAdvertisements(ctx context.Context) ([]BGPAdvertisement, error) {
	all, err := c.metalLBAdvertisements(ctx)
	cilium, err2 := c.ciliumBGPAdvertisements(ctx)
	policies, err3 := c.ciliumBGPPolicies(ctx)
	calico, err4 := c.calicoAdvertisements(ctx)
	others, err5 := c.otherAdvertisements(ctx)
	return slices.Concat(all, cilium, policies, calico, others), failures(err, err2, err3, err4, err5)
}

func (b BGPAdvertisement) state(to *statements) {
	for _, r := range b.Ranges {
		to.add(API, "BGPAdvertisement", r.First.String()+"-"+r.Last.String(), "",
			"announced by %s", cmp.Or(strings.Join(b.Nodes, ", "), "no node"))
	}
}

// bgpAdvertisement and ipAddressPool are what is read of MetalLB's types of these names
// (go.universe.tf/metallb/api/v1beta1, 0.13 to 0.15).
type bgpAdvertisement struct {
	Spec struct {
		Pools         []string               `json:"ipAddressPools"`
		PoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
		NodeSelectors []metav1.LabelSelector `json:"nodeSelectors"`
		Peers         []string               `json:"peers"`
		Aggregation   int                    `json:"aggregationLength"`
		AggregationV6 int                    `json:"aggregationLengthV6"`
	} `json:"spec"`
}

// nodeSelectors are the object's selectors, or one that selects all nodes if it has none.
func (a bgpAdvertisement) nodeSelectors() []metav1.LabelSelector {
	if len(a.Spec.NodeSelectors) == 0 {
		return []metav1.LabelSelector{{}}
	}
	return a.Spec.NodeSelectors
}

type ipAddressPool struct {
	Spec struct {
		Addresses         []string        `json:"addresses"`
		AutoAssign        *bool           `json:"autoAssign"`
		AvoidBuggyIPs     bool            `json:"avoidBuggyIPs"`
		ServiceAllocation *map[string]any `json:"serviceAllocation"`
	} `json:"spec"`
}

// AddressPool is an IPAddressPool of MetalLB (metallb.io/v1beta1).
type AddressPool struct {
	Name   string         `json:"name"`
	Ranges []AddressRange `json:"ranges"`
	// Any is set if a Service that asks for no pool may get an address of it: not without autoAssign, nor if
	// serviceAllocation keeps it for some Services. Avoids is set if .0 and .255 are given to none.
	Any    bool `json:"any,omitempty"`
	Avoids bool `json:"avoids,omitempty"`
}

// AddressPools is the source of the IPAddressPools of MetalLB, in order of name. A cluster that does not know the
// resource has none.
var AddressPools = listSource("address pools of MetalLB", listed[AddressPool]{listedPools.resource, func(a, b AddressPool) int {
	return cmp.Compare(a.Name, b.Name)
}}, func(s *Snapshot) *List[AddressPool] { return &s.AddressPools }, nil)

func addressPoolOf(o *unstructured.Unstructured, pool ipAddressPool) (p AddressPool, own bool, err error) {
	spec := pool.Spec
	p = AddressPool{
		Name: o.GetName(), Any: (spec.AutoAssign == nil || *spec.AutoAssign) && spec.ServiceAllocation == nil, Avoids: spec.AvoidBuggyIPs,
	}
	for _, text := range spec.Addresses {
		r, err := ParseAddressRange(text)
		if err != nil {
			return p, true, fmt.Errorf("IPAddressPool %s/%s: spec.addresses: %w", o.GetNamespace(), p.Name, err)
		}
		p.Ranges = append(p.Ranges, r)
	}
	return p, true, nil
}

var (
	metalLB              = schema.GroupVersion{Group: "metallb.io", Version: "v1beta1"}
	listedAdvertisements = customList[bgpAdvertisement](metalLB.WithResource("bgpadvertisements"), "BGPAdvertisements")
	listedPools          = customAs(metalLB.WithResource("ipaddresspools"), "IPAddressPools", addressPoolOf)
)

func (c *cluster) metalLBAdvertisements(ctx context.Context) ([]BGPAdvertisement, error) {
	advertisements, err := listedAdvertisements.whole(ctx, c)
	if err != nil || len(advertisements) == 0 {
		return nil, err
	}
	pools, err := listedPools.list(ctx, c)
	nodes, err2 := listedNodes.list(ctx, c)
	if err := failures(err, err2); err != nil {
		return nil, err
	}
	var all []BGPAdvertisement
	for _, advertisement := range advertisements {
		o := advertisement.value
		b := BGPAdvertisement{
			Namespace: advertisement.namespace, Name: advertisement.name, Peers: o.Spec.Peers,
			AggregationLength: o.Spec.Aggregation, AggregationLengthV6: o.Spec.AggregationV6,
		}
		for _, pool := range pools {
			selected, err := anySelects(o.Spec.PoolSelectors, pool.labels)
			if err != nil {
				return nil, fmt.Errorf("%s: spec.ipAddressPoolSelectors: %w", advertisement, err)
			}
			// Without names and selectors it is of all pools.
			every := len(o.Spec.Pools) == 0 && len(o.Spec.PoolSelectors) == 0
			if pool.namespace != advertisement.namespace || !every && !selected && !slices.Contains(o.Spec.Pools, pool.name) {
				continue
			}
			if pool.err != nil {
				return nil, pool.err
			}
			b.Ranges = append(b.Ranges, pool.value.Ranges...)
		}
		by, err := selection(nodes, o.nodeSelectors())
		if err != nil {
			return nil, fmt.Errorf("%s: spec.nodeSelectors: %w", advertisement, err)
		}
		b.Nodes = by.Nodes
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b BGPAdvertisement) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

func anySelects(selectors []metav1.LabelSelector, labelSet map[string]string) (bool, error) {
	for _, s := range selectors {
		if selected, err := selects(&s, labelSet); selected || err != nil {
			return selected, err
		}
	}
	return false, nil
}

// ParseAddressRange reads a range of a pool: 192.0.2.0/24 or 192.0.2.1-192.0.2.9.
func ParseAddressRange(text string) (AddressRange, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return AddressRange{p.Masked().Addr(), lastAddress(p)}, nil
	}
	first, last, _ := strings.Cut(text, "-")
	from, err := netip.ParseAddr(strings.TrimSpace(first))
	if err != nil {
		return AddressRange{}, err
	}
	to, err := netip.ParseAddr(strings.TrimSpace(last))
	return AddressRange{from, to}, err
}

func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// MetalLBPeer is a BGPPeer of MetalLB (metallb.io/v1beta2).
type MetalLBPeer struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// BFDProfile is the name of its BFDProfile; empty: its sessions have no BFD.
	BFDProfile string `json:"bfd_profile,omitempty"`
}

func (p MetalLBPeer) String() string { return p.Namespace + "/" + p.Name }

// MetalLBPeers is the source of MetalLB's BGPPeers, in order of namespace and name. A cluster that does
// not know the resource has none.
var MetalLBPeers = listSource("BGPPeers of MetalLB", metalLBPeers, func(s *Snapshot) *List[MetalLBPeer] { return &s.MetalLBPeers }, nil)

var metalLBPeers = customAs(schema.GroupVersionResource{Group: metalLB.Group, Version: "v1beta2", Resource: "bgppeers"}, "BGPPeers",
	func(o *unstructured.Unstructured, peer struct {
		Spec struct {
			BFDProfile string `json:"bfdProfile"`
		} `json:"spec"`
	}) (MetalLBPeer, bool, error) {
		return MetalLBPeer{Namespace: o.GetNamespace(), Name: o.GetName(), BFDProfile: peer.Spec.BFDProfile}, true, nil
	})
