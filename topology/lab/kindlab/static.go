package kindlab

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/topology/bgp"
)

// AddStatic gives every router a static route to a prefix, in place of an earlier one.
func (l *Lab) AddStatic(ctx context.Context, prefix netip.Prefix, nextHop netip.Addr) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.AddStatic(ctx, prefix, nextHop) })
}

// RemoveStatic removes the static route to a prefix from every router that has one.
func (l *Lab) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.RemoveStatic(ctx, prefix) })
}

// Links implements snapshot.LinkReader: nothing where the router's program does not tell.
func (r *Router) Links(ctx context.Context) ([]bgp.LinkNeighbor, error) {
	reader, reads := r.RouterControl.(interface {
		Links(context.Context) ([]bgp.LinkNeighbor, error)
	})
	if !reads {
		return nil, nil
	}
	return reader.Links(ctx)
}

// WatchLink has each router on a network ask who answers there for an address, to which it gets a
// route there unless it has one.
func (l *Lab) WatchLink(ctx context.Context, network string, address netip.Addr) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error {
		own, there := l.Topology.AddressOn(r.Name(), network)
		if !there {
			return nil
		}
		watcher, watches := r.RouterControl.(interface {
			WatchLink(ctx context.Context, address, own netip.Addr) error
		})
		if !watches {
			return fmt.Errorf("router %s is not relapse's own, and does not tell who answers for %s", r.Name(), address)
		}
		return watcher.WatchLink(ctx, address, own)
	})
}
