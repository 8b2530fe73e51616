package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CiliumNode is a CiliumNode (cilium.io/v2).
type CiliumNode struct {
	Name string `json:"name"`
	// PodCIDRs are spec.ipam.podCIDRs: where the node's pods get their
	// addresses from.
	PodCIDRs []netip.Prefix `json:"pod_cidrs,omitempty"`
	// InternalIPs are the addresses of type InternalIP in spec.addresses.
	InternalIPs []netip.Addr `json:"internal_ips,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// CiliumNodes is the source of the CiliumNodes, in order of name. A cluster
// that does not know the resource has none.
var CiliumNodes = clusterList("CiliumNodes", (*cluster).ciliumNodes, func(s *Snapshot) *List[CiliumNode] { return &s.CiliumNodes }, CiliumNode.state)

func (n CiliumNode) names(to *Names) { to.Nodes[n.Name] = true }

func (n CiliumNode) state(to *statements) {
	for _, p := range n.PodCIDRs {
		to.add(Agent, "CiliumNode.spec.ipam.podCIDRs", p.String(), n.Name, "%s", n.Name)
	}
}

var ciliumNodeResource = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

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
		} `json:"ipam"`
	} `json:"spec"`
}

func (c *cluster) ciliumNodes(ctx context.Context) ([]CiliumNode, error) {
	l, err := c.dynamic.Resource(ciliumNodeResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing CiliumNodes: %w", err)
	}
	nodes := make([]CiliumNode, 0, len(l.Items))
	for _, item := range l.Items {
		var o ciliumNode
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &o); err != nil {
			return nil, fmt.Errorf("CiliumNode %q: %w", item.GetName(), err)
		}
		n := CiliumNode{Name: o.Metadata.Name, Created: o.Metadata.CreationTimestamp.Time}
		if n.PodCIDRs, err = parsePrefixes(o.Spec.IPAM.PodCIDRs); err != nil {
			return nil, fmt.Errorf("CiliumNode %q: spec.ipam.podCIDRs: %w", n.Name, err)
		}
		for _, a := range o.Spec.Addresses {
			if a.Type == string(corev1.NodeInternalIP) {
				ip, err := netip.ParseAddr(a.IP)
				if err != nil {
					return nil, fmt.Errorf("CiliumNode %q: spec.addresses: %w", n.Name, err)
				}
				n.InternalIPs = append(n.InternalIPs, ip)
			}
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b CiliumNode) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}
