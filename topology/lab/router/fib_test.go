package router

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/must"
)

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func connected(p, iface, own string) bgp.Route {
	return bgp.Route{
		Prefix: prefix(p), Type: bgp.RouteUnicast, Protocol: bgp.RouteKernel,
		NextHops: []bgp.NextHop{{Interface: iface}}, Source: addr(own),
	}
}

func via(p string, proto bgp.RouteProtocol, metric int, hops ...string) bgp.Route {
	r := bgp.Route{Prefix: prefix(p), Type: bgp.RouteUnicast, Protocol: proto, Metric: metric}
	for i := 0; i < len(hops); i += 2 {
		r.NextHops = append(r.NextHops, bgp.NextHop{Address: addr(hops[i]), Interface: hops[i+1]})
	}
	return r
}

func learned(p, nextHop, neighbor string) bgp.Path {
	return bgp.Path{Prefix: prefix(p), NextHop: addr(nextHop), Neighbor: addr(neighbor), Multipath: true}
}

// twoLinks is the table of a router between a network of nodes and another.
var twoLinks = []bgp.Route{
	connected("10.4.94.0/24", "eth0", "10.4.94.2"),
	connected("10.4.36.0/24", "eth1", "10.4.36.239"),
}

func TestPlan(t *testing.T) {
	internal := learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32")
	internal.Internal = true
	worse := learned("10.5.112.0/24", "10.4.94.21", "10.4.94.21")
	worse.Multipath = false
	local := learned("10.5.112.0/24", "0.0.0.0", "10.4.94.32")
	local.Neighbor, local.Best = netip.Addr{}, true

	for _, tt := range []struct {
		name     string
		paths    []bgp.Path
		statics  []Static
		table    []bgp.Route
		want     []bgp.Route // but for the guard
		rejected []Rejected
	}{
		{name: "nothing learned", table: twoLinks},
		{name: "one path", paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32")}, table: twoLinks,
			want: []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}},
		{name: "iBGP has another distance", paths: []bgp.Path{internal}, table: twoLinks,
			want: []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceIBGP, "10.4.94.32", "eth0")}},
		{name: "equal paths share the traffic, in order of address",
			paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32"), learned("10.5.112.0/24", "10.4.36.9", "10.4.36.9")},
			table: twoLinks,
			want:  []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.36.9", "eth1", "10.4.94.32", "eth0")}},
		{name: "two neighbours, one next hop",
			paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32"), learned("10.5.112.0/24", "10.4.94.32", "10.4.94.21")},
			table: twoLinks,
			want:  []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}},
		{name: "a worse path forwards nothing", paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32"), worse},
			table: twoLinks, want: []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}},
		{name: "the router's own path is best", paths: []bgp.Path{local, worse}, table: twoLinks},
		{name: "one of two next hops is not on-link",
			paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32"), learned("10.5.112.0/24", "192.0.2.1", "10.4.94.21")},
			table: twoLinks,
			want:  []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")},
			rejected: []Rejected{{
				Prefix: prefix("10.5.112.0/24"), NextHop: addr("192.0.2.1"), Protocol: bgp.RouteBGP,
				Reason: "not usable as next hop: not on-link on any interface",
			}}},
		{name: "the next hop is the router itself",
			paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.2", "10.4.94.32")},
			table: twoLinks,
			rejected: []Rejected{{
				Prefix: prefix("10.5.112.0/24"), NextHop: addr("10.4.94.2"), Protocol: bgp.RouteBGP,
				Reason: "not usable as next hop: it is the router's own address on eth0",
			}}},
		{name: "static wins over eBGP", paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32")},
			statics: []Static{{Prefix: prefix("10.5.112.0/24"), NextHops: []netip.Addr{addr("10.4.94.21")}}},
			table:   twoLinks,
			want:    []bgp.Route{via("10.5.112.0/24", bgp.RouteStatic, DistanceStatic, "10.4.94.21", "eth0")}},
		{name: "static that leads nowhere gives way to BGP",
			paths:   []bgp.Path{learned("10.5.112.0/24", "10.4.94.32", "10.4.94.32")},
			statics: []Static{{Prefix: prefix("10.5.112.0/24"), NextHops: []netip.Addr{addr("192.0.2.1")}}},
			table:   twoLinks,
			want:    []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")},
			rejected: []Rejected{{
				Prefix: prefix("10.5.112.0/24"), NextHop: addr("192.0.2.1"), Protocol: bgp.RouteStatic,
				Reason: "not usable as next hop: not on-link on any interface",
			}}},
		{name: "connected wins over both", paths: []bgp.Path{learned("10.4.36.0/24", "10.4.94.32", "10.4.94.32")}, table: twoLinks},
		{name: "the longest connected prefix leads to the next hop",
			paths: []bgp.Path{learned("10.5.112.0/24", "10.4.94.130", "10.4.94.130")},
			table: append([]bgp.Route{connected("10.4.94.128/25", "eth2", "10.4.94.129")}, twoLinks...),
			want:  []bgp.Route{via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.130", "eth2")}},
		{name: "BGP's default route is a route like any other", paths: []bgp.Path{learned("0.0.0.0/0", "10.4.94.32", "10.4.94.32")},
			table: twoLinks, want: []bgp.Route{via("0.0.0.0/0", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			routes, rejected := plan(false, tt.paths, tt.statics, tt.table)
			must.Equal(t, "routes", append([]bgp.Route{guard}, tt.want...), routes, byValue)
			must.Equal(t, "rejected", tt.rejected, rejected, byValue)
		})
	}
}

func TestDiff(t *testing.T) {
	one := via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")
	two := via("10.5.112.0/24", bgp.RouteBGP, DistanceEBGP, "10.4.94.21", "eth0", "10.4.94.32", "eth0")
	static := via("10.5.112.0/24", bgp.RouteStatic, DistanceStatic, "10.4.94.21", "eth0")
	engine := via("0.0.0.0/0", bgp.RouteBoot, 0, "10.4.94.1", "eth0")
	foreign := via("198.51.100.0/24", bgp.RouteStatic, 0, "10.4.94.1", "eth0")

	for _, tt := range []struct {
		name            string
		present, should []bgp.Route
		replace, remove []bgp.Route
	}{
		{name: "in line", present: []bgp.Route{guard, one}, should: []bgp.Route{guard, one}},
		{name: "new", present: []bgp.Route{guard}, should: []bgp.Route{guard, one}, replace: []bgp.Route{one}},
		{name: "gone", present: []bgp.Route{guard, one}, should: []bgp.Route{guard}, remove: []bgp.Route{one}},
		{name: "grown to ECMP", present: []bgp.Route{guard, one}, should: []bgp.Route{guard, two}, replace: []bgp.Route{two}},
		{name: "shrunk", present: []bgp.Route{guard, two}, should: []bgp.Route{guard, one}, replace: []bgp.Route{one}},
		{name: "static takes over", present: []bgp.Route{guard, one}, should: []bgp.Route{guard, static},
			replace: []bgp.Route{static}, remove: []bgp.Route{one}},
		{name: "default route of the container engine", present: []bgp.Route{engine}, should: []bgp.Route{guard},
			replace: []bgp.Route{guard}, remove: []bgp.Route{engine}},
		{name: "other people's routes stay", present: append([]bgp.Route{guard, foreign}, twoLinks...), should: []bgp.Route{guard}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			replace, remove := diff(tt.present, tt.should, owned)
			must.Equal(t, "replace", tt.replace, replace, byValue)
			must.Equal(t, "remove", tt.remove, remove, byValue)
		})
	}
}
