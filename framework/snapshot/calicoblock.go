package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CalicoBlock is an IPAMBlock (crd.projectcalico.org/v1): a part of a pool of addresses.
type CalicoBlock struct {
	CIDR netip.Prefix `json:"cidr"`
	// Node has the affinity: its pods get their addresses from the block, and it announces
	// it. Empty: no node has, or something else, such as a load balancer.
	Node string `json:"node,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// CalicoBlocks is the source of Calico's blocks, in order of prefix. A cluster that does
// not know the resource has none.
var CalicoBlocks = clusterList("IPAMBlocks", (*cluster).calicoBlocks, func(s *Snapshot) *List[CalicoBlock] { return &s.CalicoBlocks }, CalicoBlock.state)

func (b CalicoBlock) names(to *Names) {
	if b.Node != "" {
		to.Nodes[b.Node] = true
	}
}

func (b CalicoBlock) state(to *statements) {
	to.add(Agent, "IPAMBlock.spec.affinity", b.CIDR.String(), b.Node, "%s", cmp.Or(b.Node, "no node"))
}

var calicoBlockResource = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "ipamblocks"}

// calicoBlock is what is read of Calico's type of that name
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoBlock struct {
	Metadata struct {
		CreationTimestamp metav1.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		CIDR string `json:"cidr"`
		// Affinity is host:NODE or virtual:NAME.
		Affinity string `json:"affinity"`
		Deleted  bool   `json:"deleted"`
	} `json:"spec"`
}

func (c *cluster) calicoBlocks(ctx context.Context) ([]CalicoBlock, error) {
	l, err := c.dynamic.Resource(calicoBlockResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing IPAMBlocks: %w", err)
	}
	var blocks []CalicoBlock
	for _, item := range l.Items {
		var o calicoBlock
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &o); err != nil {
			return nil, fmt.Errorf("IPAMBlock %q: %w", item.GetName(), err)
		}
		if o.Spec.Deleted {
			continue
		}
		b := CalicoBlock{Created: o.Metadata.CreationTimestamp.Time}
		if b.CIDR, err = netip.ParsePrefix(o.Spec.CIDR); err != nil {
			return nil, fmt.Errorf("IPAMBlock %q: spec.cidr: %w", item.GetName(), err)
		}
		if node, host := strings.CutPrefix(o.Spec.Affinity, "host:"); host {
			b.Node = node
		}
		blocks = append(blocks, b)
	}
	slices.SortFunc(blocks, func(a, b CalicoBlock) int { return a.CIDR.Compare(b.CIDR) })
	return blocks, nil
}
