package bgp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// Numbers of linux/rtnetlink.h, and of FRR's static routes (zebra/rt_netlink.h, RTPROT_ZSTATIC).
const (
	rtnUnicast      = 1
	rtprotBoot      = 3
	protocolZStatic = 196
)

// routeTypes are the names that ip(8) prints for RTN_UNICAST and others of linux/rtnetlink.h.
var routeTypes = map[int]RouteType{
	rtnUnicast: RouteUnicast, 2: "local", 3: "broadcast", 5: "multicast", 6: RouteBlackhole, 7: RouteUnreachable, 8: "prohibit", 9: "throw",
}

// routeProtocols are the names of RTPROT_UNSPEC and the others of linux/rtnetlink.h.
var routeProtocols = map[int]RouteProtocol{
	0: "unspec", 1: "redirect", 2: RouteKernel, rtprotBoot: RouteBoot, 4: RouteStatic, 8: "gated", 9: "ra", 10: "mrt", 11: "zebra",
	12: RouteBIRD, 13: "dnrouted", 14: "xorp", 15: "ntk", 16: "dhcp", 17: "mrouted", 42: "babel",
	186: RouteBGP, 187: "isis", 188: "ospf", 189: "rip", 192: "eigrp", protocolZStatic: RouteStatic,
}

func routeType(number int) RouteType {
	return cmp.Or(routeTypes[number], RouteType(strconv.Itoa(number)))
}

// routeProtocol is the name of a protocol: FRR's static routes are of RouteStatic.
func routeProtocol(number int) RouteProtocol {
	return cmp.Or(routeProtocols[number], RouteProtocol(strconv.Itoa(number)))
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

// address converts an address; the result is invalid if ip is.
func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// kernelRoute is a route of `ip -j -N route`. Types and protocols are numbers; the most frequent ones,
// unicast and boot, are left out.
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
	decoder := json.NewDecoder(strings.NewReader(text))
	err := elements(decoder, '[', func() error {
		var from kernelRoute
		if err := decoder.Decode(&from); err != nil {
			return err
		}
		r := Route{Prefix: byDefault, Metric: from.Metric, Source: from.PrefSrc}
		kind, err := number(from.Type, rtnUnicast)
		by := 0
		if err == nil {
			by, err = number(from.Protocol, rtprotBoot)
		}
		r.Type, r.Protocol = routeType(kind), routeProtocol(by)
		if err == nil && from.Dst != "default" {
			r.Prefix, err = prefixOrAddress(from.Dst)
		}
		if err != nil {
			return fmt.Errorf("the route to %q: %w", from.Dst, err)
		}
		if from.Dev != "" && r.Type == RouteUnicast { // IPv6 routes that discard packets are on lo
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
		err = ended(decoder)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the routes of ip(8): %w", err)
	}
	slices.SortFunc(routes, CompareRoutes)
	return routes, nil
}

// prefixOrAddress reads a prefix; ip(8) prints the prefix of a single address without its length.
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
