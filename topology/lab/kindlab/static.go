package kindlab

import (
	"context"
	"net/netip"
)

// AddStatic gives every router a static route to a prefix, in place of an earlier one.
func (l *Lab) AddStatic(ctx context.Context, prefix netip.Prefix, nextHop netip.Addr) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.AddStatic(ctx, prefix, nextHop) })
}

// RemoveStatic removes the static route to a prefix from every router that has one.
func (l *Lab) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.RemoveStatic(ctx, prefix) })
}
