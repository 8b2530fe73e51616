package bgp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestFromNetlink(t *testing.T) {
	network := func(s string) *net.IPNet {
		_, n, err := net.ParseCIDR(s)
		must.NoError(t, err)
		return n
	}
	names := map[int]string{2: "eth0", 3: "eth1"}
	a, b := netip.MustParseAddr("10.4.94.238"), netip.MustParseAddr("10.4.94.239")
	for _, tt := range []struct {
		name string
		in   netlink.Route
		want Route
	}{
		{"connected",
			netlink.Route{Dst: network("10.4.94.0/24"), LinkIndex: 2, Src: net.IPv4(10, 4, 94, 32), Protocol: 2, Type: 1},
			Route{Prefix: netip.MustParsePrefix("10.4.94.0/24"), Type: RouteUnicast, Protocol: RouteKernel,
				NextHops: []NextHop{{Interface: "eth0"}}, Source: netip.MustParseAddr("10.4.94.32")}},
		{"default with two next hops",
			netlink.Route{Protocol: 3, Type: 1, MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: 3, Gw: net.IPv4(10, 4, 94, 239)}, {LinkIndex: 2, Gw: net.IPv4(10, 4, 94, 238)},
			}},
			Route{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: RouteUnicast, Protocol: "boot",
				NextHops: []NextHop{{Address: a, Interface: "eth0"}, {Address: b, Interface: "eth1"}}}},
		{"a gateway of IPv6",
			netlink.Route{Dst: network("10.5.112.0/24"), Protocol: 186, Type: 1, LinkIndex: 2, Via: &netlink.Via{AddrFamily: 10, Addr: net.ParseIP("fe80::1")}},
			Route{Prefix: netip.MustParsePrefix("10.5.112.0/24"), Type: RouteUnicast, Protocol: RouteBGP,
				NextHops: []NextHop{{Address: netip.MustParseAddr("fe80::1"), Interface: "eth0"}}}},
		{"unreachable", netlink.Route{Dst: network("10.5.112.0/21"), Protocol: 4, Type: 7, Priority: 9},
			Route{Prefix: netip.MustParsePrefix("10.5.112.0/21"), Type: RouteUnreachable, Protocol: RouteStatic, Metric: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must.Equal(t, "", tt.want, fromNetlink(tt.in, netip.PrefixFrom(netip.IPv4Unspecified(), 0), names), byValue)
		})
	}
}
