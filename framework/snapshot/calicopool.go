package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

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
var CalicoPools = clusterList("IPPools", []*resource{calicoIPPools.resource, listedDefinitions.resource}, (*cluster).calicoPools, func(s *Snapshot) *List[CalicoPool] { return &s.CalicoPools }, CalicoPool.state)

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

var (
	calicoGroup   = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
	calicoIPPools = customList[calicoPool](calicoGroup.WithResource("ippools"), "IPPools")
)

func (c *cluster) calicoPools(ctx context.Context) ([]CalicoPool, error) {
	all, err := calicoIPPools.in(ctx, c)
	if err != nil {
		return nil, c.absent(ctx, err, calicoIPPools.resource)
	}
	var pools []CalicoPool
	for _, o := range all {
		if o.err != nil {
			return nil, o.err
		}
		p := CalicoPool{Name: o.name, NotExported: o.is.Spec.DisableBGPExport, NATOutgoing: o.is.Spec.NATOutgoing}
		if p.CIDR, err = netip.ParsePrefix(o.is.Spec.CIDR); err != nil {
			return nil, fmt.Errorf("%s: spec.cidr: %w", o, err)
		}
		pools = append(pools, p)
	}
	slices.SortFunc(pools, func(a, b CalicoPool) int { return cmp.Compare(a.Name, b.Name) })
	return pools, nil
}
