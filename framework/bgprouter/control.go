package bgprouter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/relapse-dev/relapse/topology/each"
)

// Control is a router of a lab that somebody else has brought up: it is read as by Outside, and its
// static routes and sessions are changed. It must be of kind FRR. It is safe for concurrent use.
type Control struct {
	*outside
	mu sync.Mutex
	// statics are the next hops that were added, by prefix.
	statics map[netip.Prefix][]netip.Addr
}

// NewControl makes the control of a router, which must be of kind FRR: BIRD takes static routes
// from its configuration alone.
func NewControl(d Declared) (*Control, error) {
	if d.Kind != FRR {
		return nil, fmt.Errorf("router %s is of kind %s, whose static routes cannot be changed from outside; expected %s", d.Name, d.Kind, FRR)
	}
	return &Control{outside: &outside{router: d, turn: make(chan bool, 1)}, statics: map[netip.Prefix][]netip.Addr{}}, nil
}

// configure runs a command of FRR's configuration. It is not written to a file.
func (c *Control) configure(ctx context.Context, command string) error {
	_, err := c.run(ctx, []string{"vtysh", "-c", "configure terminal", "-c", command})
	return err
}

// AddStatic adds a static route to a prefix, in place of an earlier one of this Control.
func (c *Control) AddStatic(ctx context.Context, prefix netip.Prefix, nextHops ...netip.Addr) error {
	if err := c.RemoveStatic(ctx, prefix); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, hop := range nextHops {
		c.statics[prefix] = append(c.statics[prefix], hop) // also if it may have been added
		if err := c.configure(ctx, fmt.Sprintf("ip route %s %s", prefix, hop)); err != nil {
			return err
		}
	}
	return nil
}

// RemoveStatic removes the static route to a prefix, if this Control has added one.
func (c *Control) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, hop := range c.statics[prefix] {
		if err := c.configure(ctx, fmt.Sprintf("no ip route %s %s", prefix, hop)); err != nil {
			return err
		}
	}
	delete(c.statics, prefix)
	return nil
}

// Clear closes the session with a neighbour. A running neighbour dials again.
func (c *Control) Clear(ctx context.Context, neighbor netip.Addr) error {
	_, err := c.run(ctx, []string{"vtysh", "-c", "clear bgp " + neighbor.String()})
	return err
}

// Restore removes every static route that was added and not removed.
func (c *Control) Restore(ctx context.Context) error {
	c.mu.Lock()
	var left []netip.Prefix
	for prefix := range c.statics {
		left = append(left, prefix)
	}
	c.mu.Unlock()
	errs := each.Of(left, func(prefix netip.Prefix) error { return c.RemoveStatic(ctx, prefix) })
	return errors.Join(errs...)
}

// Close does nothing: each command has a connection of its own.
func (c *Control) Close() error { return nil }
