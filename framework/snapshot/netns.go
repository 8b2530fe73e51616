package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

// NetnsRoutes returns a RouteReader for the network namespace at a path such
// as /proc/4711/ns/net. The path is asked for every time: it changes when the
// node's container is started again.
func NetnsRoutes(path func(context.Context) (string, error)) RouteReader {
	return func(ctx context.Context) ([]Route, error) {
		p, err := path(ctx)
		if err != nil {
			return nil, fmt.Errorf("finding the network namespace: %w", err)
		}
		ns, err := netns.GetFromPath(p)
		if err != nil {
			return nil, fmt.Errorf("opening network namespace %s: %w", p, err)
		}
		defer ns.Close()
		routes, err := namespaceRoutes(ctx, ns)
		if err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", p, err)
		}
		return routes, nil
	}
}

func namespaceRoutes(ctx context.Context, ns netns.NsHandle) ([]Route, error) {
	// The handle's socket stays in ns; this thread is back in its own
	// namespace when NewHandleAt returns.
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer h.Close()
	links, err := dump(ctx, h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	// Without a filter the library leaves out all tables but main. A nil route
	// in place of an empty one is a panic in netlink 1.3.1.
	list, err := dump(ctx, func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	routes := make([]Route, 0, len(list))
	for _, r := range list {
		routes = append(routes, fromNetlink(r, names))
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Metric, b.Metric))
	})
	return routes, nil
}

// dump repeats a netlink dump that a concurrent change has interrupted, which
// may have missed entries, until ctx ends.
func dump[T any](ctx context.Context, list func() ([]T, error)) ([]T, error) {
	for {
		items, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || ctx.Err() != nil {
			return items, err
		}
	}
}

func fromNetlink(n netlink.Route, names map[int]string) Route {
	r := Route{
		Prefix:   netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		Type:     router.Type(n.Type),
		Protocol: router.Protocol(n.Protocol),
		Metric:   n.Priority,
		Source:   address(n.Src),
	}
	if n.Dst != nil {
		bits, _ := n.Dst.Mask.Size()
		r.Prefix = netip.PrefixFrom(address(n.Dst.IP), bits)
	}
	// A multipath route has no link of its own.
	if n.LinkIndex != 0 {
		r.NextHops = append(r.NextHops, NextHop{Address: address(n.Gw), Interface: names[n.LinkIndex]})
	}
	for _, hop := range n.MultiPath {
		r.NextHops = append(r.NextHops, NextHop{Address: address(hop.Gw), Interface: names[hop.LinkIndex]})
	}
	slices.SortFunc(r.NextHops, func(a, b NextHop) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Interface, b.Interface))
	})
	return r
}

// address is invalid where there is none.
func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
