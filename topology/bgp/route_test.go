package bgp

import (
	"fmt"
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
	for _, tt := range []struct {
		name  string
		route netlink.Route
		want  string
	}{
		{"connected", netlink.Route{Dst: network("10.4.94.0/24"), LinkIndex: 2, Src: net.IPv4(10, 4, 94, 32), Protocol: 2, Type: 1},
			"10.4.94.0/24 dev eth0 proto kernel metric 0 from 10.4.94.32"},
		{"default with two next hops",
			netlink.Route{Protocol: 3, Type: 1, MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: 3, Gw: net.IPv4(10, 4, 94, 239)}, {LinkIndex: 2, Gw: net.IPv4(10, 4, 94, 238)},
			}},
			"0.0.0.0/0 via 10.4.94.238 dev eth0 via 10.4.94.239 dev eth1 proto boot metric 0 from invalid IP"},
		{"a gateway of IPv6",
			netlink.Route{Dst: network("10.5.112.0/24"), Protocol: 186, Type: 1, LinkIndex: 2, Via: &netlink.Via{AddrFamily: 10, Addr: net.ParseIP("fe80::1")}},
			"10.5.112.0/24 via fe80::1 dev eth0 proto bgp metric 0 from invalid IP"},
		{"unreachable", netlink.Route{Dst: network("10.5.112.0/21"), Protocol: 4, Type: 7, Priority: 9},
			"unreachable 10.5.112.0/21 proto static metric 9 from invalid IP"},
	} {
		r := fromNetlink(tt.route, netip.PrefixFrom(netip.IPv4Unspecified(), 0), names)
		must.Equal(t, tt.name, tt.want, fmt.Sprintf("%s from %s", r, r.Source))
	}
}
