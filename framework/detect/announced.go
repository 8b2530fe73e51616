package detect

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// announcing are the sources that say which ranges of pods a node is to announce. Only where
// peering is observed they are read: in a lab its topology says that.
func (p Peering) announcing() []snapshot.Source {
	if p == Declared {
		return nil
	}
	return []snapshot.Source{snapshot.BGPAdvertisements, snapshot.CalicoPools, snapshot.CalicoPeers}
}

// Reasons why a range is not announced by intent.
const (
	notAdvertised = "no CiliumBGPAdvertisement of the node's peers is of that range"
	notExported   = "IPPool %s is not exported by BGP (disableBGPExport)"
)

// intents are what objects say of what nodes announce.
type intents struct {
	// cilium are the nodes for which Cilium's BGP is configured, and metalLB those that MetalLB
	// announces from.
	cilium  map[string]ciliumIntent
	metalLB map[string]bool
	// inside are the pools of Calico that are not exported. exported: the others are, to peers
	// besides the mesh, and no filter may keep them back.
	inside   map[string]bool
	exported bool
}

// ciliumIntent is what a node announces of its ranges: those in podCIDRs, and those of pools.
type ciliumIntent struct {
	podCIDRs bool
	pools    map[string]bool
}

func intentsOf(s snapshot.Snapshot) intents {
	all := intents{cilium: map[string]ciliumIntent{}, metalLB: map[string]bool{}, inside: map[string]bool{}}
	for _, b := range s.BGPAdvertisements.Items {
		for _, node := range b.Nodes {
			switch b.Speaker {
			case "":
				all.metalLB[node] = true
			case snapshot.CiliumBGP:
				of := all.cilium[node]
				of.podCIDRs = of.podCIDRs || b.PodCIDRs
				if of.pools == nil {
					of.pools = map[string]bool{}
				}
				for _, pool := range b.PodPools {
					of.pools[pool] = true
				}
				all.cilium[node] = of
			}
		}
	}
	for _, p := range s.CalicoPools.Items {
		all.inside[p.Name] = p.NotExported
	}
	peers := s.CalicoPeers.Items
	all.exported = len(peers) > 0 && !slices.ContainsFunc(peers, func(p snapshot.CalicoPeer) bool { return len(p.Filters) > 0 })
	return all
}

// declared returns what the objects of the CNI say of a node's range: that it is announced, or why
// it is not. With neither they say nothing. Which peers are told ranges of IPv6 is not read.
func (v *view) declared(node string, p netip.Prefix) (yes bool, why string) {
	pool := v.pools[p]
	switch v.layer {
	case calicoLayer:
		inside, known := v.intents().inside[pool]
		if inside {
			return false, fmt.Sprintf(notExported, pool)
		}
		return known && v.intents().exported && p.Addr().Is4(), ""
	case ciliumLayer:
		of, configured := v.intents().cilium[node]
		if !configured || !p.Addr().Is4() {
			return false, ""
		}
		if pool == "" && of.podCIDRs || of.pools[pool] {
			return true, ""
		}
		return false, notAdvertised
	}
	return false, ""
}

// speaksForOthers reports whether a node may announce Services by another program than the one
// that announces its pods, or by settings of the node alone: then those Services say nothing
// about its pods.
func (v *view) speaksForOthers(node string) bool {
	return v.layer == ciliumLayer || !v.BGPAdvertisements.Read || v.intents().metalLB[node]
}

// poolsDiffer reports whether two ranges of a node are of different pools, or may be.
func (v *view) poolsDiffer(p, q netip.Prefix) bool {
	return v.pools[p] != v.pools[q] || v.layer == calicoLayer && v.pools[p] == ""
}

// rejects reports whether a router gets more from a node than it accepts.
func (v *view) rejects(r *router, node string) bool {
	return slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool { return n.Received > n.Accepted && v.addresses[n.Address] == node })
}

// somewhere reports whether a router has a route to a range.
func (v *view) somewhere(p netip.Prefix) bool {
	return slices.ContainsFunc(v.routers, func(r *router) bool { return v.covered(r, p) })
}
