package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// CalicoPeer is a BGPPeer of Calico (crd.projectcalico.org/v1).
type CalicoPeer struct {
	Name string `json:"name"`
	// Address is the peer's address; invalid if the object selects nodes by their labels.
	Address netip.Addr `json:"address,omitzero"`
	// Nodes are the names of the nodes that have the peer, in order.
	Nodes []string `json:"nodes,omitempty"`
	// Filters are the names of the BGPFilters that decide what the peer is told, besides the pools.
	Filters []string `json:"filters,omitempty"`
}

// CalicoPeers is the source of Calico's BGPPeers, in order of name, with the nodes that have them as peers. A cluster
// that does not know the resource has none.
var CalicoPeers = clusterList("BGPPeers of Calico", []*resource{calicoBGPPeers.resource, listedNodes.resource, listedDefinitions.resource},
	(*cluster).calicoPeers, func(s *Snapshot) *List[CalicoPeer] { return &s.CalicoPeers }, nil)

// calicoPeer is what is read of Calico's type BGPPeer
// (github.com/projectcalico/calico/libcalico-go/lib/apis/crd.projectcalico.org/v1, 3.28).
type calicoPeer struct {
	Spec struct {
		Node         string   `json:"node"`
		NodeSelector string   `json:"nodeSelector"`
		PeerIP       string   `json:"peerIP"`
		PeerSelector string   `json:"peerSelector"`
		Filters      []string `json:"filters"`
	} `json:"spec"`
}

var calicoBGPPeers = customList[calicoPeer](calicoGroup.WithResource("bgppeers"), "BGPPeers")

func (c *cluster) calicoPeers(ctx context.Context) ([]CalicoPeer, error) {
	peers, err := calicoBGPPeers.whole(ctx, c)
	if err != nil || peers == nil {
		return nil, err
	}
	nodes, err := listedNodes.list(ctx, c)
	if err != nil {
		return nil, err
	}
	all := make([]CalicoPeer, 0, len(peers))
	for _, peer := range peers {
		spec := peer.value.Spec
		p := CalicoPeer{Name: peer.name, Filters: spec.Filters}
		if spec.PeerIP != "" {
			if p.Address, err = addressOrPort(spec.PeerIP); err != nil {
				return nil, fmt.Errorf("%s: spec.peerIP: %w", peer, err)
			}
		}
		selected, err := peer.value.selection(calicoNodes(nodes))
		if err != nil {
			return nil, fmt.Errorf("%s: spec.nodeSelector: %w", peer, err)
		}
		p.Nodes = selected.Nodes
		all = append(all, p)
	}
	return all, nil
}

// addressOrPort reads an address, which a port may follow: 192.0.2.1:179, [2001:db8::1]:179.
func addressOrPort(text string) (netip.Addr, error) {
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.Addr(), nil
	}
	return netip.ParseAddr(strings.Trim(text, "[]"))
}
