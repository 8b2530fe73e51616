package snapshot

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CalicoPool is an IPPool of Calico (crd.projectcalico.org/v1), which its blocks are parts of.
type CalicoPool struct {
	Name string       `json:"name"`
	CIDR netip.Prefix `json:"cidr"`
	// NotExported is set if no node announces the pool's blocks by BGP: spec.disableBGPExport.
	NotExported bool `json:"not_exported,omitempty"`
	// NATOutgoing is set if nodes are to hide the addresses of the pool's pods from what is in no
	// pool.
	NATOutgoing bool `json:"nat_outgoing,omitempty"`
}

// CalicoPools is the source of Calico's pools, in order of name. A cluster that does not know
// the resource has none.
var CalicoPools = listSource("IPPools", calicoIPPools, func(s *Snapshot) *List[CalicoPool] { return &s.CalicoPools }, CalicoPool.state)

func (p CalicoPool) state(to *statements) {
	exported := "exported"
	if p.NotExported {
		exported = "not exported"
	}
	to.add(API, "IPPool", p.CIDR.String(), "", "%s, %s", p.Name, exported)
}

// calicoPool is what is read of Calico's type IPPool
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoPool struct {
	Spec struct {
		CIDR             string `json:"cidr"`
		DisableBGPExport bool   `json:"disableBGPExport"`
		NATOutgoing      bool   `json:"natOutgoing"`
	} `json:"spec"`
}

var calicoGroup = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}

var calicoIPPools = customAs(calicoGroup.WithResource("ippools"), "IPPools",
	func(o *unstructured.Unstructured, pool calicoPool) (p CalicoPool, own bool, err error) {
		p = CalicoPool{Name: o.GetName(), NotExported: pool.Spec.DisableBGPExport, NATOutgoing: pool.Spec.NATOutgoing}
		if p.CIDR, err = netip.ParsePrefix(pool.Spec.CIDR); err != nil {
			err = fmt.Errorf("IPPool %s: spec.cidr: %w", p.Name, err)
		}
		return p, true, err
	})
