package kindlab

import (
	"context"

	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology"
)

// Up brings a topology up. When it fails or ctx ends, it also returns the part of
// the lab that exists, for its logs; the caller must take it down.
//
// The topology must be valid. A lab of that name must not be running. The error is
// a *HeldError if another process holds the lab.
func Up(ctx context.Context, docker *client.Client, t topology.Topology, o Options) (*Lab, error) {
	l, err := hold(docker, t, o)
	if err != nil {
		return nil, err
	}
	return l, l.up(ctx)
}

func (l *Lab) up(ctx context.Context) error {
	if err := l.reachUpstreams(ctx); err != nil {
		return err
	}
	if err := l.makeStateDir(); err != nil {
		return err
	}
	images, err := l.load(ctx, containerImages(l.Topology))
	if err != nil {
		return err
	}
	err = l.options.step("isolated networks", func() error { return createNetworks(ctx, l.docker, l.Topology) })
	if err != nil {
		return err
	}
	// The slowest actions begin first: Docker starts one container at a time, and all
	// share the CPUs.
	all := l.actions(ctx)
	served := all.add("registry", func(ctx context.Context) error { return l.startRegistry(ctx, images[registryImage]) })
	all.add("", l.serve, served)
	all.add("routers and hosts", func(ctx context.Context) error { return l.startRoutersAndHosts(ctx, images) }, served)
	l.Clusters = make([]*Cluster, len(l.Topology.Clusters))
	all.add("", func(ctx context.Context) (err error) {
		for i, c := range l.Topology.Clusters {
			if l.Clusters[i], err = l.startCluster(ctx, c, images, served); err != nil {
				return err
			}
		}
		return nil
	})
	return all.Wait()
}

// startCluster boots the cluster's nodes and joins them. The control plane can pull
// its images when served is closed.
func (l *Lab) startCluster(ctx context.Context, c topology.Cluster, images map[string]string, served <-chan struct{}) (*Cluster, error) {
	var running *Cluster
	var token string
	first := c.Nodes[0].Name
	all := l.actions(ctx)
	created := all.add("control plane "+first+" boots, by kind", func(ctx context.Context) error {
		return l.createControlPlane(ctx, c, images[nodeImage])
	})
	// The node's entrypoint, which runs when kind returns, reads the default route. It
	// fails if the route has two next hops already.
	booted := all.add("", l.Node(first).boot, created, served)
	initialised := all.add(first+" is initialised", func(ctx context.Context) error { return l.initControlPlane(ctx, c) }, created, served)
	opened := all.add("API server on "+first, func(ctx context.Context) (err error) {
		running, err = l.openNewCluster(ctx, c)
		return err
	}, created, served)
	registered := all.add("", func(ctx context.Context) (err error) {
		if err = running.registerAll(ctx); err == nil {
			token, err = running.joinToken(ctx)
		}
		return err
	}, opened)
	all.add("", func(ctx context.Context) error { return running.controllersRun(ctx) }, booted, initialised, registered)
	for _, n := range c.Nodes[1:] {
		worker := all.add(n.Name+" boots", func(ctx context.Context) error { return l.startWorker(ctx, n, images[imageOf(n)]) }, served)
		all.add(n.Name+" joins", func(ctx context.Context) error { return running.join(ctx, n, token) },
			worker, booted, initialised, registered)
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return running, nil
}

// actions run concurrently, each when the actions that it needs have succeeded. The
// first failure cancels the others.
type actions struct {
	*errgroup.Group
	ctx  context.Context
	step func(name string, do func() error) error
}

func (l *Lab) actions(ctx context.Context) *actions {
	group, ctx := errgroup.WithContext(ctx)
	return &actions{group, ctx, l.options.step}
}

// add adds an action that begins when the channels of needs are closed. It returns the channel that
// is closed when the action has succeeded. An action with a name is reported as a step.
func (a *actions) add(name string, do func(context.Context) error, needs ...<-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	a.Go(func() error {
		for _, need := range needs {
			select {
			case <-need:
			case <-a.ctx.Done():
				return a.ctx.Err()
			}
		}
		run := func() error { return do(a.ctx) }
		if name != "" {
			run = func() error { return a.step(name, func() error { return do(a.ctx) }) }
		}
		if err := run(); err != nil {
			return err
		}
		close(done)
		return nil
	})
	return done
}
