package bgp

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

// The package's copies of the kernel's numbers, which other systems use, equal the numbers of Linux.
func TestRouteNames(t *testing.T) {
	for number := range 256 {
		want := RouteProtocol(netlink.RouteProtocol(number).String())
		if number == protocolZStatic {
			want = RouteStatic
		}
		must.Equal(t, "protocol", want, routeProtocol(number))
	}
	for number, want := range map[int]RouteType{
		unix.RTN_UNSPEC: "0", unix.RTN_UNICAST: RouteUnicast, unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "4",
		unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: RouteBlackhole, unix.RTN_UNREACHABLE: RouteUnreachable,
		unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw", unix.RTN_NAT: "10",
	} {
		must.Equal(t, "type", want, routeType(number))
	}
}
