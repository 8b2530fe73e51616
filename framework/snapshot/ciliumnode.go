package snapshot

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CiliumNode is a CiliumNode (cilium.io/v2).
type CiliumNode struct {
	Name string `json:"name"`
	// PodCIDRs are spec.ipam.podCIDRs: where the node's pods get their addresses from.
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
var CiliumNodes = listSource("CiliumNodes", listedCiliumNodes,
	func(s *Snapshot) *List[CiliumNode] { return &s.CiliumNodes }, CiliumNode.state)

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

var listedCiliumNodes = customAs(schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"},
	"CiliumNodes", ciliumNodeOf)

func ciliumNodeOf(o *unstructured.Unstructured, node ciliumNode) (n CiliumNode, own bool, err error) {
	n = CiliumNode{Name: o.GetName(), Created: o.GetCreationTimestamp().Time}
	if n.PodCIDRs, err = parsePrefixes(node.Spec.IPAM.PodCIDRs); err != nil {
		return n, true, fmt.Errorf("CiliumNode %q: spec.ipam.podCIDRs: %w", n.Name, err)
	}
	for _, a := range node.Spec.IPAM.Pools.Allocated {
		pool := AllocatedPool{Name: same(a.Pool)}
		if pool.CIDRs, err = parsePrefixes(a.CIDRs); err != nil {
			return n, true, fmt.Errorf("CiliumNode %q: spec.ipam.pools.allocated: %w", n.Name, err)
		}
		n.Pools = append(n.Pools, pool)
	}
	for _, a := range node.Spec.Addresses {
		if a.Type == string(corev1.NodeInternalIP) {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil {
				return n, true, fmt.Errorf("CiliumNode %q: spec.addresses: %w", n.Name, err)
			}
			n.InternalIPs = append(n.InternalIPs, ip)
		}
	}
	return n, true, nil
}
