package bgp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/rtnl"
)

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
	RouteBoot   RouteProtocol = "boot"
	RouteStatic RouteProtocol = "static"
	RouteBGP    RouteProtocol = "bgp"
	// RouteBIRD is any route of BIRD, of BGP or of another source.
	RouteBIRD RouteProtocol = "bird"
)

// protocolZStatic is the protocol of FRR's static routes (zebra/rt_netlink.h, RTPROT_ZSTATIC).
const protocolZStatic = 196

// routeTypes are the names that ip(8) prints.
var routeTypes = map[int]RouteType{
	unix.RTN_UNICAST: RouteUnicast, unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_MULTICAST: "multicast",
	unix.RTN_BLACKHOLE: RouteBlackhole, unix.RTN_UNREACHABLE: RouteUnreachable, unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
}

func routeType(number int) RouteType {
	return cmp.Or(routeTypes[number], RouteType(strconv.Itoa(number)))
}

// routeProtocol is the name of a protocol: FRR's static routes are of RouteStatic.
func routeProtocol(number int) RouteProtocol {
	if number == protocolZStatic {
		return RouteStatic
	}
	return RouteProtocol(netlink.RouteProtocol(number).String())
}

// CompareRoutes orders routes by prefix, then by metric.
func CompareRoutes(a, b Route) int {
	return cmp.Or(ComparePrefixes(a.Prefix, b.Prefix), cmp.Compare(a.Metric, b.Metric))
}

// CompareNextHops orders next hops by address, then by interface.
func CompareNextHops(a, b NextHop) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Interface, b.Interface))
}

// String is the route in the format of ip(8).
func (r Route) String() string {
	var b strings.Builder
	if r.Type != RouteUnicast {
		b.WriteString(string(r.Type) + " ")
	}
	b.WriteString(r.Prefix.String())
	for _, h := range r.NextHops {
		if h.Address.IsValid() {
			b.WriteString(" via " + h.Address.String())
		}
		b.WriteString(" dev " + h.Interface)
	}
	fmt.Fprintf(&b, " proto %s metric %d", r.Protocol, r.Metric)
	return b.String()
}

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
	// A multipath route has no link of its own, and of IPv6 those that discard packets are on lo.
	if n.LinkIndex != 0 && (byDefault.Addr().Is4() || r.Type == RouteUnicast) {
		r.NextHops = append(r.NextHops, NextHop{Address: gateway(n.Gw, n.Via), Interface: names[n.LinkIndex]})
	}
	for _, hop := range n.MultiPath {
		r.NextHops = append(r.NextHops, NextHop{Address: gateway(hop.Gw, hop.Via), Interface: names[hop.LinkIndex]})
	}
	slices.SortFunc(r.NextHops, CompareNextHops)
	return r
}

// gateway is that of a next hop, which is of the other family than the route where it is a via.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, is := via.(*netlink.Via); is && gw == nil {
		return address(v.Addr)
	}
	return address(gw)
}

// address converts an address; the result is invalid if ip is.
func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// kernelRoute is a route of `ip -j -N route`. Types and protocols are numbers; those of
// most routes, unicast and boot, are left out.
type kernelRoute struct {
	Type     string
	Dst      string
	Gateway  netip.Addr
	Via      kernelVia
	Dev      string
	Protocol string
	Metric   int
	PrefSrc  netip.Addr
	NextHops []struct {
		Gateway netip.Addr
		Via     kernelVia
		Dev     string
	}
}

// kernelVia is a gateway of the other family, as of unnumbered sessions.
type kernelVia struct{ Host netip.Addr }

// or is the gateway, of whichever family.
func (v kernelVia) or(gateway netip.Addr) netip.Addr {
	if gateway.IsValid() {
		return gateway
	}
	return v.Host
}

// KernelRoutes reads the main tables that `ip -4 -j -N route` and `ip -6 -j -N route` print, by
// prefix, then by metric.
func KernelRoutes(ipv4, ipv6 string) ([]Route, error) {
	routes, err := kernelRoutes(ipv4, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		return nil, err
	}
	more, err := kernelRoutes(ipv6, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	return append(routes, more...), err
}

// kernelRoutes reads the table of a family, whose default route has a prefix.
func kernelRoutes(text string, byDefault netip.Prefix) ([]Route, error) {
	number := func(text string, absent int) (int, error) {
		if text == "" {
			return absent, nil
		}
		n, err := strconv.ParseUint(text, 10, 8)
		return int(n), err
	}
	routes := []Route{}
	in := json.NewDecoder(strings.NewReader(text))
	err := elements(in, '[', func() error {
		var from kernelRoute
		if err := in.Decode(&from); err != nil {
			return err
		}
		r := Route{Prefix: byDefault, Metric: from.Metric, Source: from.PrefSrc}
		kind, err := number(from.Type, unix.RTN_UNICAST)
		by := 0
		if err == nil {
			by, err = number(from.Protocol, unix.RTPROT_BOOT)
		}
		r.Type, r.Protocol = routeType(kind), routeProtocol(by)
		if err == nil && from.Dst != "default" {
			r.Prefix, err = prefixOrAddress(from.Dst)
		}
		if err != nil {
			return fmt.Errorf("the route to %q: %w", from.Dst, err)
		}
		if from.Dev != "" && r.Type == RouteUnicast { // of IPv6 those that discard packets are on lo
			r.NextHops = append(r.NextHops, NextHop{Address: from.Via.or(from.Gateway), Interface: from.Dev})
		}
		for _, hop := range from.NextHops {
			r.NextHops = append(r.NextHops, NextHop{Address: hop.Via.or(hop.Gateway), Interface: hop.Dev})
		}
		slices.SortFunc(r.NextHops, CompareNextHops)
		routes = append(routes, r)
		return nil
	})
	if err == nil {
		err = ended(in)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the routes of ip(8): %w", err)
	}
	slices.SortFunc(routes, CompareRoutes)
	return routes, nil
}

// prefixOrAddress reads a prefix; ip(8) prints that of one address without its length.
func prefixOrAddress(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}
