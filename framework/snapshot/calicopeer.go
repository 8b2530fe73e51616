package snapshot

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// CalicoPeer is a BGPPeer of Calico (crd.projectcalico.org/v1).
type CalicoPeer struct {
	Name string `json:"name"`
	// Filters are the names of the BGPFilters that decide what the peer is told, besides the
	// pools.
	Filters []string `json:"filters,omitempty"`
}

// CalicoPeers is the source of Calico's BGPPeers, in order of name. A cluster that does not know
// the resource has none.
var CalicoPeers = listSource("BGPPeers of Calico", calicoBGPPeers, func(s *Snapshot) *List[CalicoPeer] { return &s.CalicoPeers }, nil)

// calicoPeer is what is read of Calico's type BGPPeer
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoPeer struct {
	Spec struct {
		Filters []string `json:"filters"`
	} `json:"spec"`
}

var calicoBGPPeers = customAs(calicoGroup.WithResource("bgppeers"), "BGPPeers",
	func(o *unstructured.Unstructured, of calicoPeer) (CalicoPeer, bool, error) {
		return CalicoPeer{Name: o.GetName(), Filters: of.Spec.Filters}, true, nil
	})
