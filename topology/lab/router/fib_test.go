package router

import (
	"net/netip"
	"slices"
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
	const p = "10.5.112.0/24"
	one := learned(p, "10.4.94.32", "10.4.94.32")
	viaOne := []bgp.Route{via(p, bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}
	internal, worse, local := one, learned(p, "10.4.94.21", "10.4.94.21"), learned(p, "0.0.0.0", "10.4.94.32")
	internal.Internal, worse.Multipath = true, false
	local.Neighbor, local.Best = netip.Addr{}, true
	rejected := func(hop string, by bgp.RouteProtocol, why string) []Rejected {
		return []Rejected{{Prefix: prefix(p), NextHop: addr(hop), Protocol: by, Reason: "not usable as next hop: " + why}}
	}
	static := func(hop string) []Static { return []Static{{Prefix: prefix(p), NextHops: []netip.Addr{addr(hop)}}} }

	for _, tt := range []struct {
		name     string
		paths    []bgp.Path
		statics  []Static
		more     []bgp.Route // of the table, besides twoLinks
		want     []bgp.Route // but for the guard
		rejected []Rejected
	}{
		{name: "nothing learned"},
		{name: "one path", paths: []bgp.Path{one}, want: viaOne},
		{name: "iBGP has another distance", paths: []bgp.Path{internal},
			want: []bgp.Route{via(p, bgp.RouteBGP, DistanceIBGP, "10.4.94.32", "eth0")}},
		{name: "equal paths share the traffic, in order of address", paths: []bgp.Path{one, learned(p, "10.4.36.9", "10.4.36.9")},
			want: []bgp.Route{via(p, bgp.RouteBGP, DistanceEBGP, "10.4.36.9", "eth1", "10.4.94.32", "eth0")}},
		{name: "two neighbours, one next hop", paths: []bgp.Path{one, learned(p, "10.4.94.32", "10.4.94.21")}, want: viaOne},
		{name: "a worse path forwards nothing", paths: []bgp.Path{one, worse}, want: viaOne},
		{name: "the router's own path is best", paths: []bgp.Path{local, worse}},
		{name: "one of two next hops is not on-link", paths: []bgp.Path{one, learned(p, "192.0.2.1", "10.4.94.21")}, want: viaOne,
			rejected: rejected("192.0.2.1", bgp.RouteBGP, "not on-link on any interface")},
		{name: "the next hop is the router itself", paths: []bgp.Path{learned(p, "10.4.94.2", "10.4.94.32")},
			rejected: rejected("10.4.94.2", bgp.RouteBGP, "it is the router's own address on eth0")},
		{name: "static wins over eBGP", paths: []bgp.Path{one}, statics: static("10.4.94.21"),
			want: []bgp.Route{via(p, bgp.RouteStatic, DistanceStatic, "10.4.94.21", "eth0")}},
		{name: "static that leads nowhere gives way to BGP", paths: []bgp.Path{one}, statics: static("192.0.2.1"), want: viaOne,
			rejected: rejected("192.0.2.1", bgp.RouteStatic, "not on-link on any interface")},
		{name: "connected wins over both", paths: []bgp.Path{learned("10.4.36.0/24", "10.4.94.32", "10.4.94.32")}},
		{name: "the longest connected prefix leads to the next hop", paths: []bgp.Path{learned(p, "10.4.94.130", "10.4.94.130")},
			more: []bgp.Route{connected("10.4.94.128/25", "eth2", "10.4.94.129")},
			want: []bgp.Route{via(p, bgp.RouteBGP, DistanceEBGP, "10.4.94.130", "eth2")}},
		{name: "BGP's default route is a route like any other", paths: []bgp.Path{learned("0.0.0.0/0", "10.4.94.32", "10.4.94.32")},
			want: []bgp.Route{via("0.0.0.0/0", bgp.RouteBGP, DistanceEBGP, "10.4.94.32", "eth0")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			routes, rejected := plan(false, tt.paths, tt.statics, slices.Concat(tt.more, twoLinks))
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
