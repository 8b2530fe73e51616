package snapshot

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/rtnl"
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

func routesOf(ctx context.Context, m Machine) ([]Route, error) {
	var routes []Route
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(_ string, h *netlink.Handle) (err error) {
		routes, err = bgp.Routes(ctx, h, false)
		return err
	})
	return routes, err
}

func socketsOf(ctx context.Context, m Machine) ([]Socket, error) {
	var sockets []Socket
	err := inNetns(ctx, m, unix.NETLINK_INET_DIAG, func(_ string, h *netlink.Handle) error {
		list, err := rtnl.Dump(ctx, func() ([]*netlink.Socket, error) { return h.SocketDiagTCP(unix.AF_INET) })
		if err != nil {
			return fmt.Errorf("listing sockets: %w", err)
		}
		for _, s := range list {
			remote := address(s.ID.Destination)
			if remote.IsUnspecified() || remote.IsLoopback() {
				continue // it listens, or talks to itself
			}
			sockets = append(sockets, Socket{
				Local:  netip.AddrPortFrom(address(s.ID.Source), s.ID.SourcePort),
				Remote: netip.AddrPortFrom(remote, s.ID.DestinationPort),
			})
		}
		return nil
	})
	return sockets, err
}

func interfacesOf(ctx context.Context, m Machine, seen *sightings) ([]Interface, error) {
	var interfaces []Interface
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(namespace string, h *netlink.Handle) error {
		links, err := rtnl.Dump(ctx, h.LinkList)
		if err != nil {
			return fmt.Errorf("listing interfaces: %w", err)
		}
		list, err := rtnl.Dump(ctx, func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("listing addresses: %w", err)
		}
		addresses := map[int][]netip.Prefix{} // by index of the interface
		for _, a := range list {
			bits, _ := a.Mask.Size()
			addresses[a.LinkIndex] = append(addresses[a.LinkIndex], netip.PrefixFrom(address(a.IP), bits))
		}
		for _, l := range links {
			attrs := l.Attrs()
			interfaces = append(interfaces, Interface{
				Name: attrs.Name, Index: attrs.Index, Type: l.Type(), Flags: attrs.Flags.String(), Addresses: addresses[attrs.Index],
			})
		}
		seen.note(namespace, interfaces, time.Now())
		return nil
	})
	return interfaces, err
}
