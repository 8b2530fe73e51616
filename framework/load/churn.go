package load

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Churn replaces the endpoint of many Services by the next address of a range, one by one, as long as any load runs.
type Churn struct {
	// Services is how many there are.
	Services int
	// Range is a /24. Nothing connects to its addresses.
	Range netip.Prefix
	// Every is the time from one change to the next of a Service.
	Every time.Duration

	changes atomic.Int64 // how often Endpoints were replaced

	creating sync.Mutex
	created  *kindlab.Cluster // where the Services are; guarded by creating

	mu      sync.Mutex // guards what follows
	loads   int        // how many loads run
	running *churning  // nil if no load runs
}

type churning struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // why it ended, when done is closed
}

const churnPrefix = "churn-"

func churnName(i int) string { return fmt.Sprintf("%s%02d", churnPrefix, i) }

// IsChurned reports whether a Service, by namespace/name, is one of a Churn's.
func IsChurned(service string) bool { return strings.HasPrefix(service, namespace+"/"+churnPrefix) }

// churnAddresses is how many addresses of the range a Service has in turn.
const churnAddresses = 250

// create creates the Services that do not exist, and gives each an endpoint, once in a cluster.
func (c *Churn) create(ctx context.Context, cluster *kindlab.Cluster) error {
	c.creating.Lock()
	defer c.creating.Unlock()
	if c.created == cluster {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(10) // one after the other took minutes on a machine with a load of 40
	for i := range c.Services {
		group.Go(func() error {
			if err := create(ctx, cluster, service(churnName(i), "", churnPort)); err != nil {
				return err
			}
			return setEndpoints(ctx, cluster, churnName(i), churnPort, nth(c.Range, 1))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	c.created = cluster
	return nil
}

// while runs the churn for a load until ctx ends. If the churn breaks, it ends for all loads.
func (c *Churn) while(ctx context.Context, cluster *kindlab.Cluster) error {
	r := c.join(func(ctx context.Context) error { return c.run(ctx, cluster) })
	defer c.leave(r)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return r.err
	}
}

func (c *Churn) join(run func(context.Context) error) *churning {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads++
	if c.running == nil {
		ctx, cancel := context.WithCancel(context.Background())
		r := &churning{cancel: cancel, done: make(chan struct{})}
		c.running = r
		go func() {
			defer close(r.done)
			r.err = run(ctx)
		}()
	}
	return c.running
}

// leave counts one load less. After the last load it ends the churn, and waits until it has ended.
func (c *Churn) leave(r *churning) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loads--; c.loads == 0 {
		r.cancel()
		<-r.done
		c.running = nil
	}
}

// run replaces the endpoint of one Service after the other by an address that it did not have for a while. So the
// table of a slow proxy changes from poll to poll, and the table of a stopped proxy does not.
func (c *Churn) run(ctx context.Context, cluster *kindlab.Cluster) error {
	tick := time.NewTicker(c.Every / time.Duration(c.Services))
	defer tick.Stop()
	for {
		n := int(c.changes.Load()) + c.Services
		if err := setEndpoints(ctx, cluster, churnName(n%c.Services), churnPort, nth(c.Range, n/c.Services%churnAddresses+1)); err != nil {
			return err
		}
		c.changes.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
