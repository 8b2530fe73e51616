package main

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestPodOf(t *testing.T) {
	podCIDR := netip.MustParsePrefix("10.20.30.32/27")
	route := func(dst string, change func(*netlink.Route)) netlink.Route {
		_, to, err := net.ParseCIDR(dst)
		must.NoError(t, err)
		r := netlink.Route{Dst: to, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
		if change != nil {
			change(&r)
		}
		return r
	}
	for _, tt := range []struct {
		name  string
		route netlink.Route
		want  string
	}{
		{"a pod", route("10.20.30.35/32", nil), "10.20.30.35"},
		{"the node's own address", route("10.20.30.33/32", func(r *netlink.Route) { r.Table, r.Type = unix.RT_TABLE_LOCAL, unix.RTN_LOCAL }), ""},
		{"the whole range", route("10.20.30.32/27", nil), ""},
		{"a pod of another node", route("10.20.30.3/32", nil), ""},
		{"behind a router", route("10.20.30.35/32", func(r *netlink.Route) { r.Gw = net.IPv4(10, 20, 28, 254) }), ""},
		{"the default route", netlink.Route{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := podOf(tt.route, podCIDR)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("%s, %v; want %q", got, ok, tt.want)
			}
		})
	}
}
