package snapshot

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNetns does something with a netlink socket of one family in a machine's network namespace. It
// also passes which namespace that is: another one after the machine was started again.
func inNetns(ctx context.Context, m Machine, family int, do func(namespace string, h *netlink.Handle) error) error {
	path, err := m.Netns(ctx)
	if err != nil {
		return fmt.Errorf("finding the network namespace: %w", err)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	defer ns.Close()
	// The handle's socket stays in ns; this thread is back in its own
	// namespace when NewHandleAt returns.
	into := ns
	if _, own := m.(Own); own {
		into = netns.None() // it is there already, and to enter takes CAP_SYS_ADMIN
	}
	h, err := netlink.NewHandleAt(into, family)
	if err != nil {
		return fmt.Errorf("opening netlink in network namespace %s: %w", path, err)
	}
	defer h.Close()
	if err := do(ns.UniqueId(), h); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
