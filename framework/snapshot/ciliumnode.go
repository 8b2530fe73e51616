package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CiliumNode is a CiliumNode (cilium.io/v2).
type CiliumNode struct {
	Name string `json:"name"`
	// PodCIDRs are spec.ipam.podCIDRs: where the node's pods get their
	// addresses from.
	PodCIDRs []netip.Prefix `json:"pod_cidrs,omitempty"`
	// Pools are spec.ipam.pools.allocated, of multi-pool: from which pools the node has ranges
	// for its pods.
	Pools []AllocatedPool `json:"pools,omitempty"`
	// InternalIPs are the addresses of type InternalIP in spec.addresses.
	InternalIPs []netip.Addr `json:"internal_ips,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// AllocatedPool is what a node has of a CiliumPodIPPool.
type AllocatedPool struct {
	Name  string         `json:"name"`
	CIDRs []netip.Prefix `json:"cidrs,omitempty"`
}

// CiliumNodes is the source of the CiliumNodes, in order of name. A cluster
// that does not know the resource has none.
var CiliumNodes = clusterList("CiliumNodes", []*resource{listedCiliumNodes.resource, listedDefinitions.resource}, (*cluster).ciliumNodes, func(s *Snapshot) *List[CiliumNode] { return &s.CiliumNodes }, CiliumNode.state)

func (n CiliumNode) state(to *statements) {
	for _, p := range n.PodCIDRs {
		to.add(Agent, "CiliumNode.spec.ipam.podCIDRs", p.String(), n.Name, "%s", n.Name)
	}
	for _, pool := range n.Pools {
		for _, p := range pool.CIDRs {
			to.add(Agent, "CiliumNode.spec.ipam.pools.allocated", p.String(), n.Name, "%s, of pool %s", n.Name, pool.Name)
		}
	}
}

// ciliumNode is what is read of Cilium's type of that name
// (github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2, 1.8 to 1.20).
type ciliumNode struct {
	Metadata struct {
		Name              string      `json:"name"`
		CreationTimestamp metav1.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Addresses []struct {
			Type string `json:"type"`
			IP   string `json:"ip"`
		} `json:"addresses"`
		IPAM struct {
			PodCIDRs []string `json:"podCIDRs"`
			Pools    struct {
				Allocated []struct {
					Pool  string   `json:"pool"`
					CIDRs []string `json:"cidrs"`
				} `json:"allocated"`
			} `json:"pools"`
		} `json:"ipam"`
	} `json:"spec"`
}

type keptCiliumNode struct {
	CiliumNode
	err error
}

var listedCiliumNodes = listing(resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}, what: "CiliumNodes",
}, func(o *unstructured.Unstructured) *keptCiliumNode {
	of, err := as[ciliumNode](o)
	if err != nil {
		return &keptCiliumNode{err: err}
	}
	n := &keptCiliumNode{CiliumNode: CiliumNode{Name: of.Metadata.Name, Created: of.Metadata.CreationTimestamp.Time}}
	if n.PodCIDRs, err = parsePrefixes(of.Spec.IPAM.PodCIDRs); err != nil {
		n.err = fmt.Errorf("CiliumNode %q: spec.ipam.podCIDRs: %w", n.Name, err)
	}
	for _, a := range of.Spec.IPAM.Pools.Allocated {
		pool := AllocatedPool{Name: same(a.Pool)}
		if pool.CIDRs, err = parsePrefixes(a.CIDRs); err != nil {
			n.err = fmt.Errorf("CiliumNode %q: spec.ipam.pools.allocated: %w", n.Name, err)
		}
		n.Pools = append(n.Pools, pool)
	}
	for _, a := range of.Spec.Addresses {
		if a.Type == string(corev1.NodeInternalIP) {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil {
				n.err = fmt.Errorf("CiliumNode %q: spec.addresses: %w", n.Name, err)
			}
			n.InternalIPs = append(n.InternalIPs, ip)
		}
	}
	return n
})

func (c *cluster) ciliumNodes(ctx context.Context) ([]CiliumNode, error) {
	all, err := listedCiliumNodes.in(ctx, c)
	if err != nil {
		return nil, c.absent(ctx, err, listedCiliumNodes.resource)
	}
	nodes := make([]CiliumNode, 0, len(all))
	for _, n := range all {
		if n.err != nil {
			return nil, n.err
		}
		nodes = append(nodes, n.CiliumNode)
	}
	slices.SortFunc(nodes, func(a, b CiliumNode) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}
