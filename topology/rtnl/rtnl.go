// Package rtnl reads complete lists of links, addresses and routes, which other labs change
// concurrently, from the kernel.
package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink"
)

// Dump repeats a netlink dump that a concurrent change interrupted, because entries
// may be missing, until ctx ends.
func Dump[T any](ctx context.Context, list func() ([]T, error)) ([]T, error) {
	for {
		items, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || ctx.Err() != nil {
			return items, err
		}
	}
}
