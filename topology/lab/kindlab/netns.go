package kindlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// InNetns runs do on a thread in the member's network namespace. Sockets and
// netlink handles that do opens belong to that namespace, as does /proc/sys/net.
func (m *member) InNetns(ctx context.Context, do func() error) error {
	path, err := m.Netns(ctx)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		// Not unlocked: the thread ends with the goroutine, so that no other goroutine
		// runs in this namespace.
		runtime.LockOSThread()
		failed <- func() error {
			ns, err := netns.GetFromPath(path)
			if err != nil {
				return fmt.Errorf("opening the network namespace of %s: %w", m.name, err)
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return fmt.Errorf("entering the network namespace of %s: %w", m.name, err)
			}
			return do()
		}()
	}()
	return <-failed
}

// dualStack are the sysctls of a member that also speaks IPv6. Docker disables IPv6 if it assigns no IPv6
// address. Detection of duplicate addresses takes seconds, and labs do not need it.
var dualStack = map[string]string{
	"net/ipv6/conf/*/accept_dad":          "0",
	"net/ipv6/conf/*/dad_transmits":       "0",
	"net/ipv6/conf/*/accept_ra":           "0",
	"net/ipv6/conf/*/accept_redirects":    "0",
	"net/ipv6/conf/all/keep_addr_on_down": "1", // as of IPv4
	"net/ipv6/conf/all/forwarding":        "1",
	"net/ipv6/fib_multipath_hash_policy":  "1",
}

// addIPv6 gives the links of a member of a dual lab their IPv6 addresses. Docker would also switch the machine's
// IPv6 forwarding on, and give the machine addresses in the lab.
func (m *member) addIPv6(ctx context.Context) error {
	if len(m.dual) == 0 || m.guest != nil {
		return nil
	}
	var ports []int // of the machine's bridges
	err := m.InNetns(ctx, func() error {
		if err := m.setSysctls(dualStack); err != nil {
			return err
		}
		// Last: a link looks for duplicates as soon as it has IPv6.
		if err := m.setSysctls(map[string]string{"net/ipv6/conf/*/disable_ipv6": "0"}); err != nil {
			return err
		}
		addresses, err := rtnl.Dump(ctx, func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
		if err != nil {
			return fmt.Errorf("on %s: listing addresses: %w", m.name, err)
		}
		for _, has := range addresses {
			own, _ := netip.AddrFromSlice(has.IP.To4())
			if !slices.ContainsFunc(m.dual, func(l topology.Link) bool { return l.Address == own }) {
				continue
			}
			size, _ := has.Mask.Size()
			given := topology.IPv6.Prefix(netip.PrefixFrom(own, size))
			err := netlink.AddrReplace(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: has.LinkIndex}}, &netlink.Addr{
				IPNet: &net.IPNet{IP: given.Addr().AsSlice(), Mask: net.CIDRMask(given.Bits(), 128)}, Flags: unix.IFA_F_NODAD,
			})
			if err != nil {
				return fmt.Errorf("on %s: giving the link with %s the address %s: %w", m.name, own, given, err)
			}
			link, err := netlink.LinkByIndex(has.LinkIndex)
			if err != nil {
				return fmt.Errorf("on %s: finding the link with %s: %w", m.name, own, err)
			}
			ports = append(ports, link.Attrs().ParentIndex)
		}
		return nil
	})
	// The machine itself speaks no IPv6 on its ends: what it sends there does not pass the lab's rules for the bridge.
	for _, index := range ports {
		port, missing := netlink.LinkByIndex(index)
		if missing == nil {
			missing = os.WriteFile("/proc/sys/net/ipv6/conf/"+port.Attrs().Name+"/disable_ipv6", []byte("1"), 0)
		}
		err = errors.Join(err, missing)
	}
	return err
}

// setSysctls sets sysctls, by patterns of their paths, in the member's namespace, which this thread is in.
func (m *member) setSysctls(values map[string]string) error {
	for pattern, value := range values {
		paths, err := filepath.Glob("/proc/sys/" + pattern)
		if err != nil {
			return fmt.Errorf("sysctl %s: %w", pattern, err)
		}
		for _, path := range paths {
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return fmt.Errorf("on %s: setting %s: %w", m.name, strings.TrimPrefix(path, "/proc/sys/"), err)
			}
		}
	}
	return nil
}

// wire sets the member's sysctls, and its default route to the lab's routers.
func (m *member) wire(ctx context.Context, nextHops []netip.Addr) error {
	if m.guest != nil {
		return m.guest.Wire(ctx, containerlab.NodeForwarding, nextHops)
	}
	return m.InNetns(ctx, func() error {
		if err := m.setSysctls(containerlab.NodeForwarding); err != nil || len(nextHops) == 0 {
			return err
		}
		if len(m.dual) > 0 {
			if err := m.setDefault(topology.IPv6, nextHops); err != nil {
				return err
			}
		}
		return m.setDefault(topology.IPv4, nextHops)
	})
}

// setDefault sets the default route of a family, to the addresses that belong to the IPv4 next hops.
func (m *member) setDefault(family topology.Family, nextHops []netip.Addr) error {
	route := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
	if family == topology.IPv6 {
		route.Dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	route.MultiPath = each.Of(nextHops, func(hop netip.Addr) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{Gw: family.Addr(hop).AsSlice()}
	})
	if err := setNextHopLinks(route); err != nil {
		return fmt.Errorf("on %s: %w", m.name, err)
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("on %s: setting the default route of %s to %v: %w", m.name, family, nextHops, err)
	}
	return nil
}

// setNextHopLinks sets the interface of each next hop, which a multipath route requires.
func setNextHopLinks(route *netlink.Route) error {
	for _, hop := range route.MultiPath {
		found, err := netlink.RouteGet(hop.Gw)
		if err != nil || len(found) == 0 {
			return fmt.Errorf("finding the interface towards next hop %s: %w", hop.Gw, err)
		}
		hop.LinkIndex = found[0].LinkIndex
	}
	return nil
}
