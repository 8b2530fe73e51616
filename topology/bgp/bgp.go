// Package bgp reads routers: the paths of a RIB, the sessions, and the routes of a kernel. Its sources
// are the answers of FRR, BIRD and GoBGP, table dumps in MRT, BMP feeds, and kernels. It changes nothing.
package bgp

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Path is one path of a router's RIB.
type Path struct {
	Prefix netip.Prefix `json:"prefix"`
	// NextHop is the NEXT_HOP attribute as received.
	NextHop netip.Addr `json:"next_hop,omitzero"`
	// Neighbor sent the path; invalid for a path that the router itself originates.
	Neighbor netip.Addr `json:"neighbor,omitzero"`
	// ASPath is nearest AS first; the members of an AS_SET are listed like the members of a sequence.
	ASPath    []uint32 `json:"as_path,omitempty"`
	Origin    string   `json:"origin"` // igp, egp or incomplete
	LocalPref uint32   `json:"local_pref"`
	MED       uint32   `json:"med"`
	// Internal is true for a path that was learned over iBGP.
	Internal bool `json:"internal"`
	// Best marks the one path that best-path selection chose.
	Best bool `json:"best"`
	// Multipath marks the best path and the paths that tie with it up to and
	// including MED: with multipath on, all of them are forwarding paths.
	Multipath bool `json:"multipath"`
}

// Neighbor is a BGP session, as the router sees it. A dynamic neighbour exists as long as
// its session, and while its paths are retained; with BIRD until the router ends.
type Neighbor struct {
	Address  netip.Addr `json:"address"`
	AS       uint32     `json:"as"`
	RouterID netip.Addr `json:"router_id,omitzero"`
	// State is the session's, in RFC 4271's words: idle, connect, active,
	// opensent, openconfirm, established; or SessionUnknown.
	State string `json:"state"`
	// Established is when the session came up, to the second. It stays the same as long
	// as the session is up.
	Established time.Time `json:"established,omitzero"`
	// Received counts the peer's IPv4 unicast prefixes before policy, Accepted the prefixes after policy.
	Received uint64 `json:"received"`
	Accepted uint64 `json:"accepted"`
	// MayReject is set if a filter may refuse some of the peer's prefixes, and Received does not count them.
	MayReject bool `json:"may_reject,omitempty"`
	// BFD is the state of the neighbour's BFD session, such as up, if there is one. Only FRR tells it.
	BFD string `json:"bfd,omitempty"`
}

// States of sessions that something here depends on.
const (
	StateEstablished = "established"
	// StateUnknown is the state of a peer in a table dump or feed that does not tell it.
	StateUnknown = "unknown"
)

// Established reports whether the session with the neighbour of that address is up.
func Established(neighbors []Neighbor, address netip.Addr) bool {
	return slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.State == StateEstablished
	})
}

// Announces reports whether the neighbour of that address has a session that came up
// at since or later, and has announced a route over it. Established may be up to a
// second early, which is its resolution.
func Announces(neighbors []Neighbor, address netip.Addr, since time.Time) bool {
	return Came(neighbors, address, since) && slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.Received > 0
	})
}

// Came reports whether the neighbour of that address has a session that came up at since or
// later, with the resolution of Announces.
func Came(neighbors []Neighbor, address netip.Addr, since time.Time) bool {
	since = since.Add(-time.Second)
	return slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.State == StateEstablished && n.Established.After(since)
	})
}

// ComparePrefixes orders prefixes by address, then by length.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// defaultLocalPref is the value of all kinds of routers for a path without LOCAL_PREF.
const defaultLocalPref = 100

// rank is what routers compare for multipath, up to and including MED.
type rank struct {
	local     bool
	internal  bool
	localPref uint32
	asPathLen int
	origin    uint8
	med       uint32
}

// compareRanks sorts the preferred rank first.
func compareRanks(a, b rank) int {
	return cmp.Or(
		firstIf(a.local, b.local),
		cmp.Compare(b.localPref, a.localPref),
		cmp.Compare(a.asPathLen, b.asPathLen),
		cmp.Compare(a.origin, b.origin),
		cmp.Compare(a.med, b.med),
		firstIf(b.internal, a.internal),
	)
}

func firstIf(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// ranked is a path with what decides how much it is preferred.
type ranked struct {
	Path
	rank rank
	// discards is set for an unreachable next hop, for example.
	discards bool
}

// bestOf orders paths by prefix, then by preference, and marks the best ones. A path that
// is marked already is the best one to its prefix. A path that discards packets is not.
func bestOf(all []ranked) []Path {
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(ComparePrefixes(a.Prefix, b.Prefix), firstIf(a.Best, b.Best), compareRanks(a.rank, b.rank))
	})
	paths := make([]Path, 0, len(all))
	var best rank
	for i, p := range all {
		if i == 0 || all[i-1].Prefix != p.Prefix {
			best, p.Best = p.rank, true
		}
		p.Multipath = p.rank == best
		if p.discards {
			p.Best, p.Multipath = false, false
		}
		paths = append(paths, p.Path)
	}
	return paths
}

func sortPaths(paths []Path) {
	slices.SortStableFunc(paths, func(a, b Path) int {
		return cmp.Or(ComparePrefixes(a.Prefix, b.Prefix), firstIf(a.Best, b.Best), firstIf(a.Multipath, b.Multipath))
	})
}

func sortNeighbors(neighbors []Neighbor) {
	slices.SortFunc(neighbors, func(a, b Neighbor) int { return a.Address.Compare(b.Address) })
}
