//go:build lab

package subnet

import (
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

// A route in another table than main is found in the kernel.
func TestOverlapsOfTheKernel(t *testing.T) {
	runtime.LockOSThread() // not unlocked: thread and namespace end with the test
	must.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	vpn := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "vpn0"}}
	must.NoError(t, netlink.LinkAdd(vpn))
	must.NoError(t, netlink.LinkSetUp(vpn))
	for prefix, table := range map[string]int{"10.4.0.0/16": 51820, "0.0.0.0/1": unix.RT_TABLE_MAIN, "128.0.0.0/1": unix.RT_TABLE_MAIN} {
		_, dst, _ := net.ParseCIDR(prefix)
		must.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: dst, Table: table, LinkIndex: vpn.Index, Scope: netlink.SCOPE_LINK}))
	}
	got, err := Overlaps(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.4.94.0/24"), netip.MustParsePrefix("192.0.2.0/24")})
	if err != nil || len(got) != 1 || got[0].By() != "vpn0 (routing table 51820)" {
		t.Errorf("%+v, %v", got, err)
	}
}
