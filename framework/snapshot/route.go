package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Path is one path of a router's RIB.
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
	// Internal is true for a path that was learned over iBGP.
	Internal bool `json:"internal"`
	// Best marks the one path that best-path selection chose.
	Best bool `json:"best"`
	// Multipath marks the best path and those that tie with it up to and
	// including MED: with multipath on, all of them are forwarding paths.
	Multipath bool `json:"multipath"`
	// Received is when the router got the path.
	Received time.Time `json:"received"`
}

// Neighbor is a BGP session, as the router sees it.
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
	// HoldTime is the negotiated one.
	HoldTime time.Duration `json:"hold_time_ns"`
	// Received counts the peer's IPv4 unicast prefixes before policy,
	// Accepted those after it.
	Received uint64 `json:"received"`
	Accepted uint64 `json:"accepted"`
}

// States of sessions that something here depends on.
const (
	// SessionEstablished is that of a session that is up.
	SessionEstablished = "established"
	// SessionUnknown is that of a peer of a table dump, which does not tell it.
	SessionUnknown = "unknown"
)

// Session returns the router's established session with an address, if there is one.
func (r Router) Session(with netip.Addr) (n Neighbor, up bool) {
	i := slices.IndexFunc(r.Neighbors.Items, func(n Neighbor) bool { return n.Address == with && n.State == SessionEstablished })
	if i < 0 {
		return Neighbor{}, false
	}
	return r.Neighbors.Items[i], true
}

// Route is one route of a kernel's main table.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	Type   RouteType    `json:"type"`
	// NextHops are in order of address, then interface. A route that discards
	// packets, such as RouteUnreachable, has none.
	NextHops []NextHop     `json:"next_hops,omitempty"`
	Protocol RouteProtocol `json:"protocol"`
	// Metric decides between routes to one prefix: the lowest wins. On a GoBGP router
	// it is the administrative distance; FRR and BIRD give all routes the same metric.
	Metric int `json:"metric"`
	// Source is the preferred source address, where there is one.
	Source netip.Addr `json:"source,omitzero"`
}

// NextHop is where a route leads.
type NextHop struct {
	// Address is invalid when the prefix is connected.
	Address   netip.Addr `json:"address,omitzero"`
	Interface string     `json:"interface"`
}

// RouteType is what a route does with a packet: the name that ip(8) prints for
// rtm_type of rtnetlink(7), or the number if it has none.
type RouteType string

// The types of routes that something here depends on.
const (
	RouteUnicast     RouteType = "unicast"
	RouteBlackhole   RouteType = "blackhole"
	RouteUnreachable RouteType = "unreachable"
)

// RouteProtocol is who installed a route: the name that ip(8) prints for
// rtm_protocol of rtnetlink(7), or the number if it has none.
type RouteProtocol string

// The protocols that something here depends on.
const (
	RouteKernel RouteProtocol = "kernel"
	RouteStatic RouteProtocol = "static"
	RouteBGP    RouteProtocol = "bgp"
	// RouteBIRD is any route of BIRD, of BGP or of another source, on a router that a lab has
	// not configured.
	RouteBIRD RouteProtocol = "bird"
)

// routeState says where the routes of a table lead.
func routeState(layer Layer, where string) func(Route, *statements) {
	return func(r Route, to *statements) {
		node := ""
		var hops []string
		for _, h := range r.NextHops {
			hop := "dev " + h.Interface
			if h.Address.IsValid() {
				node = to.nodes[h.Address]
				hop = "via " + to.named(h.Address) + " " + hop
			}
			hops = append(hops, hop)
		}
		st := to.add(layer, where, r.Prefix.String(), node, "%s", cmp.Or(strings.Join(hops, ", "), string(r.Type)))
		st.Connected = len(r.NextHops) > 0 && !r.NextHops[0].Address.IsValid()
	}
}
