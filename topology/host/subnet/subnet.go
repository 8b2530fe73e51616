// Package subnet finds the routes of this machine that a lab's networks would overlap.
package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/rtnl"
)

// BridgePrefix begins the names of all labs' bridges.
const BridgePrefix = "rl-"

// Overlap is a route of this machine that overlaps a subnet.
type Overlap struct {
	Subnet, Route netip.Prefix
	Device        string // empty for a route without one, such as blackhole
	Table         int
}

// By is the device and the table of the route.
func (o Overlap) By() string {
	names := map[int]string{unix.RT_TABLE_MAIN: "main", unix.RT_TABLE_LOCAL: "local", unix.RT_TABLE_DEFAULT: "default"}
	return fmt.Sprintf("%s (routing table %s)", cmp.Or(o.Device, "no device"), cmp.Or(names[o.Table], fmt.Sprint(o.Table)))
}

// Lab reports whether the route belongs to a lab on this machine.
func (o Overlap) Lab() bool { return strings.HasPrefix(o.Device, BridgePrefix) }

// Overlaps returns for each subnet the first route in any routing table of this network namespace
// that overlaps it; tables are in order of number, routes from the longest prefix. Default-like
// routes (/0, and /1 of a VPN) do not count: a lab's route is more specific.
func Overlaps(ctx context.Context, subnets []netip.Prefix) ([]Overlap, error) {
	routes, err := rtnl.Dump(ctx, func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the machine's routes: %w", err)
	}
	links, err := rtnl.Dump(ctx, netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("reading the machine's links: %w", err)
	}
	devices := map[int]string{}
	for _, link := range links {
		devices[link.Attrs().Index] = link.Attrs().Name
	}
	return overlaps(subnets, routes, devices), nil
}

// defaultLike is the longest prefix length of a route that does not count.
const defaultLike = 1

func overlaps(subnets []netip.Prefix, routes []netlink.Route, devices map[int]string) []Overlap {
	var all []Overlap
	for _, r := range routes {
		prefix := prefixOf(r.Dst)
		if prefix.Bits() <= defaultLike {
			continue
		}
		index := r.LinkIndex
		if len(r.MultiPath) > 0 {
			index = r.MultiPath[0].LinkIndex
		}
		all = append(all, Overlap{Route: prefix, Device: devices[index], Table: r.Table})
	}
	// The main table comes before the local one, which holds the same addresses again.
	slices.SortStableFunc(all, func(a, b Overlap) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Route.Bits(), a.Route.Bits()))
	})
	var found []Overlap
	for _, s := range subnets {
		if i := slices.IndexFunc(all, func(o Overlap) bool { return o.Route.Overlaps(s) }); i >= 0 {
			overlap := all[i]
			overlap.Subnet = s
			found = append(found, overlap)
		}
	}
	return found
}

// prefixOf converts a route's destination; nil is the default route.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
