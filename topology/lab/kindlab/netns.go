package kindlab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
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

// forwarding are the sysctls with which a member forwards packets that arrive and
// leave by different interfaces and next hops (ECMP). The reverse path filter
// would drop them. They are set in the member's namespace.
var forwarding = map[string]string{
	"net/ipv4/ip_forward":                 "1",
	"net/ipv4/conf/*/rp_filter":           "0",
	"net/ipv4/conf/all/send_redirects":    "0", // redirects would avoid a wrong transit node
	"net/ipv4/conf/*/send_redirects":      "0",
	"net/ipv4/fib_multipath_hash_policy":  "1", // also by ports, so that probes use all next hops
	"net/ipv4/conf/all/accept_redirects":  "0",
	"net/ipv4/conf/*/accept_redirects":    "0",
	"net/ipv4/conf/*/accept_source_route": "0",
}

// wire sets the member's sysctls, and its default route to the lab's routers.
func (m *member) wire(ctx context.Context, nextHops []netip.Addr) error {
	if m.guest != nil {
		return m.guest.Wire(ctx, forwarding, nextHops)
	}
	return m.InNetns(ctx, func() error {
		for pattern, value := range forwarding {
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
		if len(nextHops) == 0 {
			return nil
		}
		route := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
		for _, hop := range nextHops {
			route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{Gw: hop.AsSlice()})
		}
		if err := setNextHopLinks(route); err != nil {
			return fmt.Errorf("on %s: %w", m.name, err)
		}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("on %s: setting the default route to %v: %w", m.name, nextHops, err)
		}
		return nil
	})
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
