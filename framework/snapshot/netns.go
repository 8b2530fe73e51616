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
	return inNamespace(ctx, m, func(ns, into netns.NsHandle) error {
		// The handle's socket stays in ns; this thread is back in its own
		// namespace when NewHandleAt returns.
		h, err := netlink.NewHandleAt(into, family)
		if err != nil {
			return fmt.Errorf("opening netlink: %w", err)
		}
		defer h.Close()
		return do(ns.UniqueId(), h)
	})
}

// inNamespace does something with a machine's network namespace, and with the one that a socket has to enter to be
// in it, which is none where it is there already: to enter takes CAP_SYS_ADMIN.
func inNamespace(ctx context.Context, m Machine, do func(ns, into netns.NsHandle) error) error {
	path, err := m.Netns(ctx)
	if err != nil {
		return fmt.Errorf("finding the network namespace: %w", err)
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", path, err)
	}
	defer ns.Close()
	into := ns
	if _, own := m.(Own); own {
		into = netns.None()
	}
	if err := do(ns, into); err != nil {
		return fmt.Errorf("network namespace %s: %w", path, err)
	}
	return nil
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
