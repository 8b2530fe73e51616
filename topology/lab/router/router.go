// Package router is a BGP router for a lab: GoBGP speaks the protocol, and
// the routes that it learns are put into the kernel's table (the FIB) over
// netlink. It plays a top-of-rack switch, so it behaves like one:
//
//   - It waits for sessions (dynamic neighbours) and never opens one.
//   - A prefix with several equally good paths has one next hop for each.
//   - A connected prefix beats a static route, which beats eBGP, which beats
//     iBGP.
//   - It has no default route, and forwards nothing that it has no route for.
//
// [Run] is such a router, inside its network namespace. A [Client] reads and
// changes it from outside through two unix sockets: GoBGP's own gRPC API for
// everything that is BGP, and a small HTTP API for the FIB and the static
// routes, which GoBGP does not know.
package router

import (
	"net/netip"
	"slices"
	"time"
)

// Route is one entry of a kernel routing table.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	Type   Type         `json:"type"`
	// NextHops are in order of address, then interface. A route that leads
	// nowhere (TypeUnreachable and its like) has none.
	NextHops []NextHop `json:"next_hops,omitempty"`
	Protocol Protocol  `json:"protocol"`
	// Metric decides between routes to one prefix: the lowest wins. Routes
	// of this package bear their administrative distance there.
	Metric int `json:"metric"`
	// Source is the preferred source address, where there is one; for a
	// connected route that is the router's own address on the link.
	Source netip.Addr `json:"source,omitzero"`
}

// NextHop is where a route leads.
type NextHop struct {
	// Address is invalid when the prefix is connected.
	Address   netip.Addr `json:"address,omitzero"`
	Interface string     `json:"interface"`
}

// Administrative distances, as on the routers of the field. They double as
// the metric of the kernel route, so that the kernel agrees on who wins.
const (
	DistanceStatic = 1
	DistanceEBGP   = 20
	DistanceIBGP   = 200
)

// guardMetric is that of the unreachable default route: the highest one, so
// that any default route that somebody asked for wins over it.
const guardMetric = 1<<32 - 1

// Path is one path of a RIB.
type Path struct {
	Prefix netip.Prefix `json:"prefix"`
	// NextHop is the NEXT_HOP attribute as received.
	NextHop netip.Addr `json:"next_hop,omitzero"`
	// Neighbor sent the path; invalid for a path that the router itself
	// originates.
	Neighbor netip.Addr `json:"neighbor,omitzero"`
	// ASPath is nearest AS first; the members of an AS_SET are listed like
	// those of a sequence.
	ASPath    []uint32 `json:"as_path,omitempty"`
	Origin    string   `json:"origin"` // igp, egp or incomplete
	LocalPref uint32   `json:"local_pref"`
	MED       uint32   `json:"med"`
	// Internal tells that the path was learned over iBGP.
	Internal bool `json:"internal"`
	// Best marks the one path that best-path selection chose.
	Best bool `json:"best"`
	// Multipath marks the best path and those that tie with it up to and
	// including MED: with multipath on, all of them are forwarding paths.
	Multipath bool `json:"multipath"`
	// Received is when the router got the path.
	Received time.Time `json:"received"`
}

// Change is one change of a RIB.
type Change struct {
	// Time is when the change reached the client.
	Time      time.Time `json:"time"`
	Withdrawn bool      `json:"withdrawn"`
	// Path is the path that came or went. Best and Multipath are not set.
	Path Path `json:"path"`
}

// Neighbor is one BGP peer. Dynamic neighbours are listed as long as their
// session lasts.
type Neighbor struct {
	Address  netip.Addr `json:"address"`
	AS       uint32     `json:"as"`
	RouterID netip.Addr `json:"router_id,omitzero"`
	// State is the session's, in RFC 4271's words: idle, connect, active,
	// opensent, openconfirm, established.
	State string `json:"state"`
	// Established is since when the session is up, to the second.
	Established time.Time `json:"established,omitzero"`
	// HoldTime is the negotiated one.
	HoldTime time.Duration `json:"hold_time_ns"`
	// Received counts the peer's IPv4 unicast prefixes before policy,
	// Accepted those after it.
	Received uint64 `json:"received"`
	Accepted uint64 `json:"accepted"`
}

// StateEstablished is the state of a session that is up.
const StateEstablished = "established"

// Established tells whether the session with the neighbour of that address is
// up. Neighbors without one of that address have none.
func Established(neighbors []Neighbor, address netip.Addr) bool {
	return slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.State == StateEstablished
	})
}

// Announces tells whether the neighbour of that address has a session that came
// up at a moment or later, and has announced a route over it. Routers know the
// beginning of a session to the second, and so it is compared.
func Announces(neighbors []Neighbor, address netip.Addr, since time.Time) bool {
	since = since.Truncate(time.Second)
	return Established(neighbors, address) && slices.ContainsFunc(neighbors, func(n Neighbor) bool {
		return n.Address == address && n.Received > 0 && !n.Established.Before(since)
	})
}

// Static is a static route that was asked for.
type Static struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHops []netip.Addr `json:"next_hops"`
}

// Rejected is a next hop that the router knows and does not use.
type Rejected struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHop  netip.Addr   `json:"next_hop"`
	Protocol Protocol     `json:"protocol"`
	Reason   string       `json:"reason"`
}

// Status is what a router says of itself.
type Status struct {
	// Ready tells that the router accepts BGP sessions and that the FIB was
	// brought in line at least once.
	Ready     bool       `json:"ready"`
	AS        uint32     `json:"as"`
	RouterID  netip.Addr `json:"router_id"`
	Neighbors []Neighbor `json:"neighbors"`
	Statics   []Static   `json:"statics"`
	Rejected  []Rejected `json:"rejected"`
	// Synced is when FIB and RIB were last brought in line.
	Synced time.Time `json:"synced,omitzero"`
	// Error is what went wrong then; empty if nothing.
	Error string `json:"error,omitempty"`
}
