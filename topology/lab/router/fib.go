package router

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// guard and guardV6 are the unreachable default routes of a router. They prevent packets from leaving the lab by
// a default route that a container engine may add. The type is not blackhole, so that senders get an ICMP error
// instead of a timeout.
var guard, guardV6 = unreachable(netip.IPv4Unspecified()), unreachable(netip.IPv6Unspecified())

func unreachable(unspecified netip.Addr) bgp.Route {
	return bgp.Route{
		Prefix: netip.PrefixFrom(unspecified, 0), Type: bgp.RouteUnreachable, Protocol: bgp.RouteStatic, Metric: guardMetric,
	}
}

// families says of each family of a router whether it is IPv6, IPv4 first.
func families(dual bool) []bool {
	if dual {
		return []bool{false, true}
	}
	return []bool{false}
}

var errUnresolved = errors.New("not usable as next hop")

type link struct {
	prefix netip.Prefix
	iface  string
	own    netip.Addr
}

func links(table []bgp.Route) []link {
	var ls []link
	for _, r := range table {
		if r.Protocol == bgp.RouteKernel && r.Type == bgp.RouteUnicast && len(r.NextHops) == 1 && !r.NextHops[0].Address.IsValid() {
			ls = append(ls, link{prefix: r.Prefix, iface: r.NextHops[0].Interface, own: r.Source})
		}
	}
	return ls
}

// resolve finds the interface of a next hop. The error is errUnresolved with the
// reason if the next hop is not on-link.
func resolve(ls []link, addr netip.Addr) (bgp.NextHop, error) {
	var on link
	for _, l := range ls {
		if l.own == addr {
			return bgp.NextHop{}, fmt.Errorf("%w: it is the router's own address on %s", errUnresolved, l.iface)
		}
		if l.prefix.Contains(addr) && (!on.prefix.IsValid() || l.prefix.Bits() > on.prefix.Bits()) {
			on = l
		}
	}
	if !on.prefix.IsValid() {
		return bgp.NextHop{}, fmt.Errorf("%w: not on-link on any interface", errUnresolved)
	}
	return bgp.NextHop{Address: addr, Interface: on.iface}, nil
}

// plan returns the routes that the router should have in the kernel: the routes of the
// RIB, the static ones and guard. It rejects next hops that are not on a link of
// table, and returns them with the reason.
func plan(dual bool, paths []bgp.Path, statics []Static, table []bgp.Route) ([]bgp.Route, []Rejected) {
	ls := links(table)
	routed := map[netip.Prefix]bool{}
	for _, l := range ls {
		routed[l.prefix] = true
	}
	routes := []bgp.Route{guard}
	if dual {
		routes = append(routes, guardV6)
	}
	rejected := []Rejected{}

	// offer adds a route to prefix unless there is a better one.
	offer := func(prefix netip.Prefix, addrs []netip.Addr, proto bgp.RouteProtocol, distance int) {
		var hops []bgp.NextHop
		for _, a := range addrs {
			hop, err := resolve(ls, a)
			if err != nil {
				rejected = append(rejected, Rejected{Prefix: prefix, NextHop: a, Protocol: proto, Reason: err.Error()})
				continue
			}
			hops = append(hops, hop)
		}
		if len(hops) == 0 || routed[prefix] {
			return
		}
		slices.SortFunc(hops, bgp.CompareNextHops)
		routed[prefix] = true
		routes = append(routes, bgp.Route{
			Prefix:   prefix,
			Type:     bgp.RouteUnicast,
			NextHops: slices.Compact(hops), // two neighbours may announce one next hop
			Protocol: proto,
			Metric:   distance,
		})
	}

	for _, s := range statics {
		offer(s.Prefix, s.NextHops, bgp.RouteStatic, DistanceStatic)
	}
	for _, group := range forwarding(paths) {
		distance := DistanceEBGP
		if group[0].Internal {
			distance = DistanceIBGP
		}
		var addrs []netip.Addr
		for _, p := range group {
			if !slices.Contains(addrs, p.NextHop) {
				addrs = append(addrs, p.NextHop)
			}
		}
		offer(group[0].Prefix, addrs, bgp.RouteBGP, distance)
	}
	return routes, rejected
}

// forwarding groups the multipath sets of a RIB by prefix, in order of prefix. A
// prefix whose best path the router originates itself has no group.
func forwarding(paths []bgp.Path) [][]bgp.Path {
	sets := map[netip.Prefix][]bgp.Path{}
	for _, p := range paths {
		if p.Multipath && p.Neighbor.IsValid() {
			sets[p.Prefix] = append(sets[p.Prefix], p)
		}
	}
	return slices.SortedFunc(maps.Values(sets), func(a, b []bgp.Path) int { return bgp.ComparePrefixes(a[0].Prefix, b[0].Prefix) })
}

// owned reports whether a route is a router's own, of any kind, or a default route: a
// router may remove it when it starts and ends.
func owned(r bgp.Route) bool {
	static := r.Protocol == bgp.RouteStatic && r.Metric == DistanceStatic
	return r.Prefix.Bits() == 0 || static || ofProgram(r)
}

// foreignDefault reports whether a route is a default route that neither FRR nor BIRD has
// installed.
func foreignDefault(r bgp.Route) bool { return r.Prefix.Bits() == 0 && !ofProgram(r) }

// frrMetric is the metric of all routes of FRR (zebra/rt_netlink.h, NL_DEFAULT_ROUTE_METRIC).
const frrMetric = 20

// ofProgram reports whether BGP, or a program such as FRR or BIRD, has installed a route.
func ofProgram(r bgp.Route) bool {
	return r.Protocol == bgp.RouteBGP || r.Protocol == bgp.RouteBIRD || r.Protocol == bgp.RouteStatic && r.Metric == frrMetric
}

// diff returns the changes from the present table to the wanted one. It removes routes for
// which removable returns true. Replacements
// are applied before removals, so that a prefix in both tables always has a route.
func diff(present, wanted []bgp.Route, removable func(bgp.Route) bool) (replace, remove []bgp.Route) {
	// The kernel's key, without TOS, which is not used.
	type key struct {
		prefix netip.Prefix
		metric int
	}
	have := map[key]bgp.Route{}
	for _, r := range present {
		have[key{r.Prefix, r.Metric}] = r
	}
	want := map[key]bool{}
	for _, r := range wanted {
		k := key{r.Prefix, r.Metric}
		want[k] = true
		if h, ok := have[k]; !ok || !same(h, r) {
			replace = append(replace, r)
		}
	}
	for _, r := range present {
		if removable(r) && !want[key{r.Prefix, r.Metric}] {
			remove = append(remove, r)
		}
	}
	return replace, remove
}

func same(a, b bgp.Route) bool {
	return a.Prefix == b.Prefix && a.Type == b.Type && a.Protocol == b.Protocol &&
		a.Metric == b.Metric && slices.Equal(a.NextHops, b.NextHops)
}
