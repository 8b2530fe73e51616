package subnet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestOverlaps(t *testing.T) {
	const main, local, vpn = 254, 255, 51820
	devices := map[int]string{1: "lo", 2: "eth0", 3: "wg0", 4: "rl-0a1b2c3d"}
	route := func(prefix string, device, table int) netlink.Route {
		_, dst, err := net.ParseCIDR(prefix)
		must.NoError(t, err)
		return netlink.Route{Dst: dst, LinkIndex: device, Table: table}
	}
	lab := netip.MustParsePrefix("10.4.94.0/24")
	for name, test := range map[string]struct {
		routes []netlink.Route
		want   []Overlap
		by     string
	}{
		"free": {routes: []netlink.Route{route("10.4.95.0/24", 2, main), route("127.0.0.0/8", 1, local)}},
		"default routes, and those of a VPN": {routes: []netlink.Route{
			{LinkIndex: 2, Table: main}, route("0.0.0.0/0", 3, vpn), route("0.0.0.0/1", 3, main), route("128.0.0.0/1", 3, main),
		}},
		"in the main table": {routes: []netlink.Route{route("10.0.0.0/8", 2, main), route("10.4.94.9/32", 2, local)},
			want: []Overlap{{Subnet: lab, Route: netip.MustParsePrefix("10.0.0.0/8"), Device: "eth0", Table: main}},
			by:   "eth0 (routing table main)"},
		"in a VPN's table": {routes: []netlink.Route{route("10.4.0.0/16", 3, vpn), route("10.0.0.0/8", 3, vpn)},
			want: []Overlap{{Subnet: lab, Route: netip.MustParsePrefix("10.4.0.0/16"), Device: "wg0", Table: vpn}},
			by:   "wg0 (routing table 51820)"},
		"an address": {routes: []netlink.Route{route("10.4.94.9/32", 2, local)},
			want: []Overlap{{Subnet: lab, Route: netip.MustParsePrefix("10.4.94.9/32"), Device: "eth0", Table: local}},
			by:   "eth0 (routing table local)"},
		"several next hops": {routes: []netlink.Route{func() netlink.Route {
			r := route("10.4.94.0/24", 0, main)
			r.MultiPath = []*netlink.NexthopInfo{{LinkIndex: 3}, {LinkIndex: 2}}
			return r
		}()},
			want: []Overlap{{Subnet: lab, Route: lab, Device: "wg0", Table: main}},
			by:   "wg0 (routing table main)"},
		"no device": {routes: []netlink.Route{route("10.4.94.0/23", 0, main)},
			want: []Overlap{{Subnet: lab, Route: netip.MustParsePrefix("10.4.94.0/23"), Table: main}},
			by:   "no device (routing table main)"},
	} {
		t.Run(name, func(t *testing.T) {
			got := overlaps([]netip.Prefix{lab, netip.MustParsePrefix("192.0.2.0/24")}, test.routes, devices)
			must.Equal(t, "overlaps", test.want, got, cmpopts.EquateComparable(netip.Prefix{}))
			must.Equal(t, "by", test.by, each.Joined(got, "", Overlap.By))
		})
	}
	got := overlaps([]netip.Prefix{lab}, []netlink.Route{route("10.4.94.0/24", 4, main)}, devices)
	must.Equal(t, "a lab's", []bool{true}, each.Of(got, Overlap.Lab))
}
