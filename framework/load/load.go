// Package load loads a cluster's Service proxies: connections stay open through one Service while its endpoints are
// removed, and the endpoints of many other Services change all the time. Several loads may run in one cluster, each
// with connections from another node; the changing Services are common to them.
package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Services declares a load. Its endpoints are addresses of one host outside of the cluster.
type Services struct {
	// Node's proxy gets the load. A probe pod must run there: the connections come from its network, as clients' do.
	Node string
	// Host has the endpoints' addresses.
	Host string

	// Held is the name of the Service with the open connections, and HeldVIP its cluster IP, in the part of the
	// Service range that the API server does not assign by itself.
	Held    string
	HeldVIP netip.Addr
	// Connections is the least number of open connections, and HeldEndpoints the number of addresses of HeldRange
	// that they lead to. With at least as many, a round-robin proxy gives one to each endpoint in its table. Start
	// opens more connections for endpoints that are not in it yet.
	Connections, HeldEndpoints int
	// HeldRange is a /24. Port is where its addresses listen: loads with the same Host need different ports.
	HeldRange netip.Prefix
	Port      uint16

	// Churn runs as long as the load does.
	Churn *Churn
}

type Load struct {
	churn  *Churn
	sink   *sink
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu  sync.Mutex
	err error // why a part of it ended early
}

// holdConnections opens n connections from the network of the probe's pod, and keeps them until it is killed.
func (s Services) holdConnections(n int) string {
	return fmt.Sprintf(`
pod=$(pgrep -o -f '^/probe agent') && exec nsenter --net --target "$pod" bash -c '
for i in $(seq %d); do exec {fd}<>/dev/tcp/%s/%d || exit; done
exec sleep infinity'`, n, s.HeldVIP, servicePort)
}

const (
	// coverWithin bounds the wait for a connection to each endpoint, and moreEvery is the time from one round of
	// connections to the next while some endpoint has none.
	coverWithin = 3 * time.Minute
	moreEvery   = 10 * time.Second
)

// Start opens the connections and, when ready returns, removes the held Service's endpoints and starts the churn. The
// load runs until Stop, also after ctx has ended. With toAll, for a round-robin proxy, it connects to each endpoint: a
// restarted kube-proxy 1.13.0 removes idle endpoints with each tick, and adds them again with its next sync.
func (s Services) Start(ctx context.Context, lab *kindlab.Lab, toAll bool, ready func(context.Context) error) (*Load, error) {
	cluster := lab.Clusters[0]
	open, err := openSink(ctx, lab.Host(s.Host), s.HeldRange, s.Port)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &Load{churn: s.Churn, sink: open, cancel: cancel}
	asked, last := 0, time.Time{}
	hold := func(n int) {
		asked, last = asked+n, time.Now()
		l.done.Go(func() {
			_, err := lab.Node(s.Node).Exec(run, "bash", "-c", s.holdConnections(n))
			l.failed(run, err)
		})
	}
	hold(s.Connections)
	err = await.Until(ctx, "connections to all endpoints", 200*time.Millisecond, coverWithin,
		func(context.Context) (bool, string, error) {
			n, to := l.Open()
			all := n >= asked && (!toAll || to == s.HeldEndpoints)
			if !all && n >= asked && time.Since(last) >= moreEvery {
				hold(s.HeldEndpoints)
			}
			return all, fmt.Sprintf("%d connections to %d endpoints", n, to), l.Err()
		})
	if err == nil {
		err = ready(ctx)
	}
	if err != nil {
		l.Stop()
		return nil, err
	}
	l.done.Go(func() { l.failed(run, s.Churn.while(run, cluster)) })
	if err := setEndpoints(ctx, cluster, s.Held, s.Port); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// failed notes that a part of the load has ended, unless it was stopped.
func (l *Load) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = errors.New("the connections were closed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
}

// Err says why a part of the load has ended early; nil while all of it goes on.
func (l *Load) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Open returns how many connections are open, and to how many endpoints.
func (l *Load) Open() (connections, endpoints int) { return l.sink.counts() }

// Changes is how many times Endpoints of the churned Services were replaced.
func (l *Load) Changes() int64 { return l.churn.changes.Load() }

// Stop ends the load and waits until it has ended.
func (l *Load) Stop() {
	l.cancel()
	l.sink.close()
	l.done.Wait()
}
