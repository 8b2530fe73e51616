// Package router is a BGP router for a lab. GoBGP, FRR or BIRD implements the protocol.
// FRR and BIRD install their routes in the kernel's table (the FIB) themselves; for GoBGP
// this package does so by netlink. The router behaves like a top-of-rack switch:
//
//   - It accepts sessions (dynamic neighbours) and never opens one.
//   - A prefix with several equally good paths has one next hop for each.
//   - The order of precedence is: connected prefix, static route, eBGP, iBGP.
//   - It has no default route, and forwards only packets for which it has a route.
//
// [Run] runs a router in its network namespace. A [Client] accesses it through a unix
// socket with an HTTP API, which is the same for all kinds.
package router

import (
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/topology"
)

// Route is one entry of a kernel routing table.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	Type   Type         `json:"type"`
	// NextHops are sorted by address, then interface. A route that drops packets, such
	// as TypeUnreachable, has none.
	NextHops []NextHop `json:"next_hops,omitempty"`
	Protocol Protocol  `json:"protocol"`
	// Metric decides between routes to one prefix: the lowest is used. For routes of
	// this package it is the administrative distance. FRR and BIRD compare distances
	// themselves: they install one route to a prefix, all with the same metric.
	Metric int `json:"metric"`
	// Source is the preferred source address, if there is one. For a connected route
	// it is the router's address on the link.
	Source netip.Addr `json:"source,omitzero"`
}

// NextHop is a next hop of a route.
type NextHop struct {
	// Address is invalid for a connected prefix.
	Address   netip.Addr `json:"address,omitzero"`
	Interface string     `json:"interface"`
}

// Administrative distances, as on common routers. They are also the metric of the
// kernel route, so that the kernel has the same precedence.
const (
	DistanceStatic = 1
	DistanceEBGP   = 20
	DistanceIBGP   = 200
)

// guardMetric is the metric of the unreachable default route: the highest, so that
// every other default route has precedence.
const guardMetric = 1<<32 - 1

// Path is one path of a RIB.
type Path struct {
	Prefix netip.Prefix `json:"prefix"`
	// NextHop is the NEXT_HOP attribute as received.
	NextHop netip.Addr `json:"next_hop,omitzero"`
	// Neighbor sent the path. It is invalid for a path that the router originates.
	Neighbor netip.Addr `json:"neighbor,omitzero"`
	// ASPath begins with the nearest AS. The members of an AS_SET are listed like those
	// of a sequence.
	ASPath    []uint32 `json:"as_path,omitempty"`
	Origin    string   `json:"origin"` // igp, egp or incomplete
	LocalPref uint32   `json:"local_pref"`
	MED       uint32   `json:"med"`
	// Internal means that the path was learned by iBGP.
	Internal bool `json:"internal"`
	// Best marks the path that best-path selection chose.
	Best bool `json:"best"`
	// Multipath marks the best path and the paths equal to it up to and including MED.
	// With multipath all of them forward packets.
	Multipath bool `json:"multipath"`
	// Received is when the router received the path.
	Received time.Time `json:"received"`
}

// Neighbor is one BGP peer. A dynamic neighbour exists as long as its session, and while
// its paths are retained; with BIRD until the router ends.
type Neighbor struct {
	Address  netip.Addr `json:"address"`
	AS       uint32     `json:"as"`
	RouterID netip.Addr `json:"router_id,omitzero"`
	// State is the session's state of RFC 4271: idle, connect, active, opensent,
	// openconfirm, established.
	State string `json:"state"`
	// Established is when the session came up, rounded down to a second. It stays the same
	// as long as the session is up.
	Established time.Time `json:"established,omitzero"`
	// HoldTime is the negotiated one.
	HoldTime time.Duration `json:"hold_time_ns"`
	// Received and Accepted count the peer's IPv4 unicast prefixes before and after
	// policy. No router has a policy; FRR counts only those that it accepts.
	Received uint64 `json:"received"`
	Accepted uint64 `json:"accepted"`
}

// StateEstablished is the state of a session that is up.
const StateEstablished = "established"

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
	return Established(neighbors, address) && slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.Established.After(since)
	})
}

// Static is a requested static route.
type Static struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHops []netip.Addr `json:"next_hops"`
}

// Rejected is a next hop that the router does not use.
type Rejected struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHop  netip.Addr   `json:"next_hop"`
	Protocol Protocol     `json:"protocol"`
	Reason   string       `json:"reason"`
}

// Status is a router's status.
type Status struct {
	// Ready means that the router accepts BGP sessions and that the FIB was reconciled
	// at least once.
	Ready    bool                `json:"ready"`
	Kind     topology.RouterKind `json:"kind"`
	AS       uint32              `json:"as"`
	RouterID netip.Addr          `json:"router_id"`
	Statics  []Static            `json:"statics"`
	// Rejected are next hops that are on no link. FRR and BIRD reject such paths
	// themselves: FRR has them in the RIB, and not as best, and BIRD does not have them.
	Rejected []Rejected `json:"rejected"`
	// Synced is when the FIB was last reconciled: with the RIB, where the router installs
	// the routes of the RIB, else with the unreachable default route.
	Synced time.Time `json:"synced,omitzero"`
	// Error is the error of that reconciliation; empty if it succeeded.
	Error string `json:"error,omitempty"`
}
