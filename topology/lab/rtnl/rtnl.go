// Package rtnl reads lists of the kernel (links, addresses, routes) whole. Labs that come
// and go beside the reader change them meanwhile.
package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
)

// Dump repeats a netlink dump that a concurrent change has interrupted, which may have
// missed entries, until ctx ends.
func Dump[T any](ctx context.Context, list func() ([]T, error)) ([]T, error) {
	for {
		items, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || ctx.Err() != nil {
			return items, err
		}
	}
}
