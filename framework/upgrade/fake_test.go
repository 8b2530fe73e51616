package upgrade

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// world is a lab on which nothing runs. The functions of a fake upgrade decide which
// packets are lost, what the router says and what kernels hold. Its clock is that of a
// synctest bubble.
type world struct {
	upgrade Upgrade
	started time.Time
	lost    map[string][]span // by probe
	broken  map[string][]time.Time
	kernels map[string]string
	// from are the addresses from which the packets of a probe arrive, each since a time.
	from   map[string][]probe.Source
	mu     sync.Mutex                    // for routes, which change while they are polled
	routes map[netip.Prefix][]netip.Addr // by prefix, the neighbours that announce it
	// sessions are the established ones, each with the time of its beginning.
	sessions map[netip.Addr]time.Time
	stopped  bool
	ending   string // how the component ends by itself
}

var (
	node1, node2 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	range1       = netip.MustParsePrefix("10.1.1.0/24")
)

// fakePod is the address of the pod on the first node, to which the probes send.
var (
	fakePod = netip.MustParseAddr("10.1.1.7")
	targets = map[string]netip.Addr{"one": fakePod}
)

// newWorld is a lab of two nodes, with a probe to each of them and a stream to the first.
func newWorld() *world {
	w := &world{
		lost: map[string][]span{}, broken: map[string][]time.Time{}, kernels: map[string]string{"one": "", "two": ""},
		routes: map[netip.Prefix][]netip.Addr{range1: {node1}}, sessions: map[netip.Addr]time.Time{node1: time.Now(), node2: time.Now()},
	}
	udp := func(to string) probe.Probe { return probe.Probe{From: "out", To: to} }
	node := func(name string, at netip.Addr) topology.Node {
		return topology.Node{Name: name, Links: []topology.Link{{Network: "nodes", Address: at}}}
	}
	w.upgrade = Upgrade{
		Component: "thing", Form: framework.Whole,
		Topology: topology.Topology{
			Name:     "fake",
			Clusters: []topology.Cluster{{Nodes: []topology.Node{node("one", node1), node("two", node2)}}},
			Routers:  []topology.Router{{Name: "tor"}},
		},
		Images: func(version string) []string {
			return []string{"relapse.dev/thing:" + version, "relapse.dev/probe:dev"}
		},
		Install: func(context.Context, *framework.Run, string) error { return nil },
		Paths: []PathKind{
			{Name: "in", Probes: []probe.Probe{udp("one"), udp("two")}},
			{Name: "in, one way", Probes: []probe.Probe{udp("one")}, OneWay: true},
			{Name: "long", Probes: []probe.Probe{{From: "out", To: "one", Protocol: probe.Stream}}},
		},
		Nodes: []string{"one", "two"},
		Roll:  func(context.Context, *framework.Run, string, string) error { return nil },
	}
	return w
}

// trip is the one from version 1 to version 2, with its record in a folder.
func (w *world) trip(dir string) *trip {
	t := newTrip(w.upgrade, "1", "2", dir, func(string) func(error) { return func(error) {} })
	t.lab, t.run = w, &framework.Run{Note: func(string) {}}
	return t
}

// loses makes a probe lose what it sends from now on, for a time.
func (w *world) loses(name string, lasting time.Duration) {
	w.lost[name] = append(w.lost[name], span{time.Now(), time.Now().Add(lasting)})
}

func (w *world) announced(routes map[netip.Prefix][]netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes = routes
}

func (w *world) start(context.Context) (probes, error) {
	w.started = time.Now()
	return w, nil
}

func (w *world) poll(context.Context) snapshot.Snapshot {
	r := snapshot.Router{Name: "tor"}
	r.Paths.Read, r.Neighbors.Read = true, true
	w.mu.Lock()
	defer w.mu.Unlock()
	for prefix, nodes := range w.routes {
		for _, n := range nodes {
			r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: prefix, Neighbor: n, NextHop: n, Multipath: true})
		}
	}
	for n, since := range w.sessions {
		r.Neighbors.Items = append(r.Neighbors.Items, snapshot.Neighbor{Address: n, State: snapshot.SessionEstablished, Established: since})
	}
	return snapshot.Snapshot{Time: time.Now(), Routers: []snapshot.Router{r}}
}

func (w *world) kernel(_ context.Context, node string) (string, error) {
	text, there := w.kernels[node]
	if !there {
		return "", fmt.Errorf("no node %s", node)
	}
	return text, nil
}

func (w *world) ends(context.Context) (string, error) { return w.ending, nil }

func (w *world) WaitClean(ctx context.Context, names []string, window, bound time.Duration) (since time.Time, err error) {
	called := time.Now()
	for {
		since, err = probe.JudgeClean(w.Timelines(), names, called, window, bound)
		if err == nil || time.Since(called) >= bound {
			return since, err
		}
		select {
		case <-ctx.Done():
			return since, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *world) Stop(context.Context, ...string) error { w.stopped = true; return nil }

func (w *world) Timelines() []probe.Timeline {
	var all []probe.Timeline
	now := time.Now()
	for _, p := range w.upgrade.probes() {
		s := probe.Stored{Probe: p, Target: netip.AddrPortFrom(targets[p.To], 7007), Started: w.started, Reported: now, FarReported: now}
		at := func(slot uint32) time.Time { return w.started.Add(time.Duration(slot) * p.Interval) }
		for slot := uint32(0); at(slot).Before(now); slot++ {
			s.Sent.Add(slot)
			lost := slices.ContainsFunc(w.lost[p.Name], func(l span) bool { return !at(slot).Before(l.began) && at(slot).Before(l.ended) })
			if !lost {
				s.Answered.Add(slot)
				s.Seen.Add(slot)
			}
			if slices.ContainsFunc(w.broken[p.Name], func(b time.Time) bool { return !b.Before(at(slot)) && b.Before(at(slot+1)) }) {
				s.Broken.Add(slot)
			}
		}
		for i, source := range w.from[p.Name] {
			until := now
			if i+1 < len(w.from[p.Name]) {
				until = w.from[p.Name][i+1].First
			}
			source.Packets = int(until.Sub(source.First) / p.Interval)
			s.Sources = append(s.Sources, source)
		}
		all = append(all, s.At(now))
	}
	return all
}

// pollOf is a poll of a snapshot.
func pollOf(s snapshot.Snapshot) history.Poll { return polling().Poll(s, s.Time) }
