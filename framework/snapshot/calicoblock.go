package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// CalicoBlock is an IPAMBlock (crd.projectcalico.org/v1): a part of a pool of addresses.
type CalicoBlock struct {
	CIDR netip.Prefix `json:"cidr"`
	// Node has the affinity: its pods get their addresses from the block, and it announces
	// it. Empty: no node has, or something else, such as a load balancer.
	Node string `json:"node,omitempty"`
	// Lent are the addresses of the block that other nodes use, in order: for their pods, or for
	// their ends of tunnels. Those nodes announce them one by one.
	Lent []LentAddress `json:"lent,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// LentAddress is an address of a block, and the node that uses it without an affinity for the
// block.
type LentAddress struct {
	Address netip.Addr `json:"address"`
	Node    string     `json:"node"`
}

// CalicoBlocks is the source of Calico's blocks, in order of prefix. A cluster that does
// not know the resource has none.
var CalicoBlocks = listSource("IPAMBlocks", listedBlocks,
	func(s *Snapshot) *List[CalicoBlock] { return &s.CalicoBlocks }, CalicoBlock.state)

func (b CalicoBlock) state(to *statements) {
	to.add(Agent, "IPAMBlock.spec.affinity", b.CIDR.String(), b.Node, "%s", cmp.Or(b.Node, "no node"))
	for _, l := range b.Lent {
		to.add(Agent, "IPAMBlock.spec.allocations", l.Address.String(), l.Node, "%s", l.Node)
	}
}

// calicoBlock is what is read of Calico's type of that name
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoBlock struct {
	Spec struct {
		CIDR string `json:"cidr"`
		// Affinity is host:NODE or virtual:NAME.
		Affinity string `json:"affinity"`
		Deleted  bool   `json:"deleted"`
		// Allocations are the indices of attributes, one for each address of the block.
		Allocations []*int `json:"allocations"`
		Attributes  []struct {
			// Secondary names the node, for addresses of pods and of tunnels alike.
			Secondary map[string]string `json:"secondary"`
		} `json:"attributes"`
	} `json:"spec"`
}

func (o calicoBlock) lent(b CalicoBlock) (all []LentAddress) {
	address := b.CIDR.Masked().Addr()
	for _, at := range o.Spec.Allocations {
		if at != nil && *at >= 0 && *at < len(o.Spec.Attributes) {
			if node := o.Spec.Attributes[*at].Secondary["node"]; node != "" && node != b.Node {
				all = append(all, LentAddress{address, same(node)})
			}
		}
		address = address.Next()
	}
	return all
}

var listedBlocks = listed[CalicoBlock]{customAs(calicoGroup.WithResource("ipamblocks"), "IPAMBlocks", blockOf).resource,
	func(a, b CalicoBlock) int { return a.CIDR.Compare(b.CIDR) }}

// blockOf is a block, unless it has been given back.
func blockOf(o *unstructured.Unstructured, block calicoBlock) (b CalicoBlock, own bool, err error) {
	b.Created = o.GetCreationTimestamp().Time
	if b.CIDR, err = netip.ParsePrefix(block.Spec.CIDR); err != nil {
		err = fmt.Errorf("IPAMBlock %q: spec.cidr: %w", o.GetName(), err)
	}
	if node, host := strings.CutPrefix(block.Spec.Affinity, "host:"); host {
		b.Node = same(node)
	}
	b.Lent = block.lent(b)
	return b, !block.Spec.Deleted, err
}
