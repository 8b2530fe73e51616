package snapshot

import (
	"cmp"
	"context"
	"slices"
)

// CalicoPeer is a BGPPeer of Calico (crd.projectcalico.org/v1).
type CalicoPeer struct {
	Name string `json:"name"`
	// Filters are the names of the BGPFilters that decide what the peer is told, besides the
	// pools.
	Filters []string `json:"filters,omitempty"`
}

// CalicoPeers is the source of Calico's BGPPeers, in order of name. A cluster that does not know
// the resource has none.
var CalicoPeers = clusterList("BGPPeers of Calico", []*resource{calicoBGPPeers.resource, listedDefinitions.resource}, (*cluster).calicoPeers, func(s *Snapshot) *List[CalicoPeer] { return &s.CalicoPeers }, nil)

// calicoPeer is what is read of Calico's type BGPPeer
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoPeer struct {
	Spec struct {
		Filters []string `json:"filters"`
	} `json:"spec"`
}

var calicoBGPPeers = customList[calicoPeer](calicoGroup.WithResource("bgppeers"), "BGPPeers")

func (c *cluster) calicoPeers(ctx context.Context) ([]CalicoPeer, error) {
	all, err := calicoBGPPeers.in(ctx, c)
	if err != nil {
		return nil, c.absent(ctx, err, calicoBGPPeers.resource)
	}
	var peers []CalicoPeer
	for _, o := range all {
		if o.err != nil {
			return nil, o.err
		}
		peers = append(peers, CalicoPeer{Name: o.name, Filters: o.is.Spec.Filters})
	}
	slices.SortFunc(peers, func(a, b CalicoPeer) int { return cmp.Compare(a.Name, b.Name) })
	return peers, nil
}
