package router

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// frrRIB is what FRR 10 prints for `show bgp ipv4 unicast detail json`.
type frrRIB struct {
	Warning string // in place of all else, such as without a BGP instance
	Routes  map[netip.Prefix][]frrPath
}

type frrPath struct {
	ASPath struct {
		Segments []struct{ List []uint32 }
	}
	Origin    string
	Metric    uint32 // MED
	LocPrf    *uint32
	Multipath bool
	BestPath  struct {
		// Overall is the RIB's best path; without it the best path of its AS.
		Overall bool
	}
	LastUpdate struct {
		Epoch int64 // seconds
	}
	NextHops []struct{ IP netip.Addr }
	Peer     struct {
		// PeerID is 0.0.0.0 for a path that the router originates.
		PeerID netip.Addr
		Type   string // external, internal
	}
}

// parseFRRPaths reads a RIB by prefix, then with the best path and those that forward too
// first. FRR lists the others by no order. When gives the time of an epoch.
func parseFRRPaths(text string, when func(epoch int64) time.Time) ([]Path, error) {
	var rib frrRIB
	if err := json.Unmarshal([]byte(text), &rib); err != nil {
		return nil, fmt.Errorf("reading FRR's RIB: %w", err)
	}
	if rib.Warning != "" {
		return nil, fmt.Errorf("reading FRR's RIB: %s", rib.Warning)
	}
	if rib.Routes == nil {
		return nil, errors.New("reading FRR's RIB: the answer has no routes")
	}
	paths := []Path{}
	for prefix, listed := range rib.Routes {
		for i, from := range listed {
			if len(from.NextHops) == 0 || !from.Peer.PeerID.IsValid() {
				return nil, fmt.Errorf("reading FRR's RIB: path %d to %s has no next hop or no peer", i, prefix)
			}
			p := Path{
				Prefix: prefix, NextHop: from.NextHops[0].IP, Origin: strings.ToLower(from.Origin),
				LocalPref: defaultLocalPref, MED: from.Metric, Internal: from.Peer.Type == "internal",
				Best: from.BestPath.Overall, Multipath: from.BestPath.Overall || from.Multipath,
				Received: when(from.LastUpdate.Epoch),
			}
			if !from.Peer.PeerID.IsUnspecified() {
				p.Neighbor = from.Peer.PeerID
			}
			if from.LocPrf != nil {
				p.LocalPref = *from.LocPrf
			}
			for _, segment := range from.ASPath.Segments {
				p.ASPath = append(p.ASPath, segment.List...)
			}
			paths = append(paths, p)
		}
	}
	slices.SortStableFunc(paths, func(a, b Path) int {
		return cmp.Or(comparePrefixes(a.Prefix, b.Prefix), firstIf(a.Best, b.Best), firstIf(a.Multipath, b.Multipath))
	})
	return paths, nil
}

// frrNeighbor is one value of what FRR 10 prints for `show bgp neighbors json`, by
// address.
type frrNeighbor struct {
	RemoteAS       uint32
	RemoteRouterID netip.Addr
	BGPState       string
	// Seconds since 1970, and milliseconds. They are set while the session is up.
	BGPTimerUpEstablishedEpoch int64
	BGPTimerHoldTimeMsecs      int64
	AddressFamilyInfo          struct {
		IPv4Unicast struct{ AcceptedPrefixCounter uint64 }
	}
}

// parseFRRNeighbors reads peers in order of address. When gives the time of an epoch.
func parseFRRNeighbors(text string, when func(epoch int64) time.Time) ([]Neighbor, error) {
	byAddress := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(text), &byAddress); err != nil {
		return nil, fmt.Errorf("reading FRR's neighbours: %w", err)
	}
	neighbors := []Neighbor{}
	for key, value := range byAddress {
		addr, err := netip.ParseAddr(key)
		if err != nil {
			if key == "warning" {
				return nil, fmt.Errorf("reading FRR's neighbours: %s", value)
			}
			continue // of the instance, such as "vrfName"
		}
		var from frrNeighbor
		if err := json.Unmarshal(value, &from); err != nil {
			return nil, fmt.Errorf("reading FRR's neighbour %s: %w", addr, err)
		}
		n := Neighbor{Address: addr, AS: from.RemoteAS, State: strings.ToLower(from.BGPState)}
		if n.State == StateEstablished {
			n.RouterID = from.RemoteRouterID
			n.Established = when(from.BGPTimerUpEstablishedEpoch)
			n.HoldTime = time.Duration(from.BGPTimerHoldTimeMsecs) * time.Millisecond
			n.Accepted = from.AddressFamilyInfo.IPv4Unicast.AcceptedPrefixCounter
			n.Received = n.Accepted
		}
		neighbors = append(neighbors, n)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}
