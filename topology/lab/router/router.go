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

	"github.com/relapse-dev/relapse/topology/bgp"
)

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

// Static is a requested static route.
type Static struct {
	Prefix   netip.Prefix `json:"prefix"`
	NextHops []netip.Addr `json:"next_hops"`
}

// Rejected is a next hop that the router does not use.
type Rejected struct {
	Prefix   netip.Prefix      `json:"prefix"`
	NextHop  netip.Addr        `json:"next_hop"`
	Protocol bgp.RouteProtocol `json:"protocol"`
	Reason   string            `json:"reason"`
}

// Status is a router's status.
type Status struct {
	// Ready means that the router accepts BGP sessions and that the FIB was reconciled
	// at least once.
	Ready bool `json:"ready"`
	// Rejected are next hops that are on no link. FRR and BIRD reject such paths
	// themselves: FRR has them in the RIB, and not as best, and BIRD does not have them.
	Rejected []Rejected `json:"rejected"`
	// Error is the error of the last reconciliation; empty if it succeeded.
	Error string `json:"error,omitempty"`
}
