package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology/rtnl"
)

// Routes lists the main table of a kernel in order of prefix and metric: of IPv4, or of both families.
func Routes(ctx context.Context, h *netlink.Handle, dual bool) ([]Route, error) {
	links, err := rtnl.Dump(ctx, h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	families := map[int]netip.Addr{netlink.FAMILY_V4: netip.IPv4Unspecified()}
	if dual {
		families[netlink.FAMILY_V6] = netip.IPv6Unspecified()
	}
	routes := []Route{}
	for family, unspecified := range families {
		// Without a filter the library leaves out all tables but main. A nil route
		// in place of an empty one is a panic in netlink 1.3.1.
		list, err := rtnl.Dump(ctx, func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{}, 0)
		})
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range list {
			routes = append(routes, fromNetlink(r, netip.PrefixFrom(unspecified, 0), names))
		}
	}
	slices.SortFunc(routes, CompareRoutes)
	return routes, nil
}

// fromNetlink converts a route of a family, whose default route has a prefix.
func fromNetlink(n netlink.Route, byDefault netip.Prefix, names map[int]string) Route {
	r := Route{
		Prefix: byDefault, Type: routeType(n.Type), Protocol: routeProtocol(int(n.Protocol)), Metric: n.Priority, Source: address(n.Src),
	}
	if n.Dst != nil {
		bits, _ := n.Dst.Mask.Size()
		r.Prefix = netip.PrefixFrom(address(n.Dst.IP), bits)
	}
	// A multipath route has no link of its own, and IPv6 routes that discard packets are on lo.
	if n.LinkIndex != 0 && (byDefault.Addr().Is4() || r.Type == RouteUnicast) {
		r.NextHops = append(r.NextHops, NextHop{Address: gateway(n.Gw, n.Via), Interface: names[n.LinkIndex]})
	}
	for _, hop := range n.MultiPath {
		r.NextHops = append(r.NextHops, NextHop{Address: gateway(hop.Gw, hop.Via), Interface: names[hop.LinkIndex]})
	}
	slices.SortFunc(r.NextHops, CompareNextHops)
	return r
}

// gateway is the address of a next hop; via has it if it is of another family than the route.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && gw == nil {
		return address(v.Addr)
	}
	return address(gw)
}
