package upgrade

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// world is a lab on which nothing runs. The functions of a fake upgrade decide which packets are lost, what the
// router says and what kernels hold. It has the clock of a synctest bubble.
type world struct {
	upgrade Upgrade
	started time.Time
	lost    map[string][]span // by probe
	broken  map[string][]time.Time
	kernels map[string]string
	// from are the addresses from which the packets of a probe arrive, each since a time.
	from     map[string][]probe.Source
	mu       sync.Mutex                    // for routes, which change while they are polled
	routes   map[netip.Prefix][]netip.Addr // by prefix, the neighbours that announce it
	sessions map[netip.Addr]time.Time
	links    []snapshot.LinkNeighbor
	stopped  bool
	ending   string // how the component ends by itself

	// Prepare, Up and Probes end with these errors. With half, a lab comes up all the same.
	noImages, noLab, noProbes error
	half                      bool
	did                       []string // calls on labs
	served                    []string // images
}

var (
	node1, node2 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	range1       = netip.MustParsePrefix("10.1.1.0/24")
	// fakePod is the address of the pod on the first node, to which the probes send.
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
		Install: func(string) framework.Action { return framework.InOrder() },
		Paths: []PathKind{
			{Name: "in", Probes: []probe.Probe{udp("one"), udp("two")}},
			{Name: "in, one way", Probes: []probe.Probe{udp("one")}, OneWay: true},
			{Name: "long", Probes: []probe.Probe{{From: "out", To: "one", Protocol: probe.Stream}}},
		},
		Nodes:  []string{"one", "two"},
		Roll:   func(context.Context, *framework.Run, string, string) error { return nil },
		kernel: w.kernel,
		ends:   func(context.Context, *framework.Run) (string, error) { return w.ending, nil },
	}
	return w
}

// run upgrades from version 1 to version 2. The record must give the same measures.
func (w *world) run(ctx context.Context, t *testing.T, dir string) (Measures, error) {
	t.Helper()
	live, err := Run(ctx, w.upgrade, "1", "2", w, engine.Options{Output: dir})
	stored := must.Get(Stored(dir, w.upgrade, "1", "2"))(t)
	must.Equal(t, "the record gives other measures", live, stored, cmpopts.EquateComparable(netip.Addr{}))
	return live, err
}

func (w *world) measures(t *testing.T) Measures {
	t.Helper()
	return must.Get(w.run(t.Context(), t, t.TempDir()))(t)
}

func (w *world) Prepare(_ context.Context, _ framework.Scenario, variants []framework.Variant) (engine.Prepared, error) {
	w.served = variants[0].Images
	return engine.Prepared{}, w.noImages
}

func (w *world) Up(context.Context, framework.Scenario, []framework.Variant, bool) (engine.Lab, error) {
	if w.noLab != nil && !w.half {
		return nil, w.noLab
	}
	return fakeLab{w}, w.noLab
}

func (w *world) Down(ctx context.Context, _ framework.Scenario) error {
	w.did = append(w.did, "remnants down")
	return ctx.Err()
}

type fakeLab struct{ *world }

func (fakeLab) Attach(*framework.Run)                           {}
func (fakeLab) Guests(context.Context) ([]report.Guest, error)  { return nil, nil }
func (fakeLab) CPUTime(context.Context) (engine.CPUTime, error) { return engine.CPUTime{}, nil }
func (fakeLab) Release()                                        {}
func (fakeLab) Close() error                                    { return nil }
func (fakeLab) Timeout() time.Duration                          { return time.Second }
func (l fakeLab) Collect(context.Context) snapshot.Snapshot     { return l.poll() }
func (l fakeLab) Stop(context.Context, ...string) error         { l.stopped = true; return nil }
func (l fakeLab) Start(context.Context) error                   { l.started = time.Now(); return nil }

func (l fakeLab) Probes(context.Context, *framework.Run, []framework.Endpoint, []probe.Probe) (engine.Probes, error) {
	return l, l.noProbes
}

func (l fakeLab) Open(context.Context, []snapshot.Source, []string) (engine.Reader, error) {
	return l, nil
}

func (l fakeLab) Logs(context.Context, time.Time, []string) (map[string]string, error) {
	return map[string]string{"one": "it said why"}, nil
}

func (l fakeLab) Down(ctx context.Context) error {
	l.did = append(l.did, "down")
	return ctx.Err()
}

func (fakeLab) WaitOutage(context.Context, []string, time.Time, time.Duration, time.Duration) (time.Time, error) {
	panic("an upgrade waits for no outage")
}

func (w *world) loses(name string, lasting time.Duration) {
	w.lost[name] = append(w.lost[name], span{time.Now(), time.Now().Add(lasting)})
}

// do changes the state that is polled.
func (w *world) do(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) announced(routes map[netip.Prefix][]netip.Addr) { w.do(func() { w.routes = routes }) }

// upgrading does something when a node gets version 2.
func (w *world) upgrading(node string, do func()) {
	w.upgrade.Roll = func(_ context.Context, _ *framework.Run, on, version string) error {
		if on == node && version == "2" {
			do()
		}
		return nil
	}
}

func lasted(p Phase) time.Duration { return p.Ended.Sub(p.Began) }

func (w *world) poll() snapshot.Snapshot {
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
	r.Links = snapshot.List[snapshot.LinkNeighbor]{Read: true, Items: slices.Clone(w.links)}
	return snapshot.Snapshot{Time: time.Now(), Routers: []snapshot.Router{r}}
}

func (w *world) kernel(_ context.Context, _ *framework.Run, node string) (string, error) {
	text, there := w.kernels[node]
	if !there {
		return "", fmt.Errorf("no node %s", node)
	}
	return text, nil
}

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

func (w *world) Timelines() []probe.Timeline {
	var all []probe.Timeline
	now := time.Now()
	for _, p := range w.upgrade.probes() {
		s := probe.Stored{Record: probe.Record{Probe: p, Target: netip.AddrPortFrom(targets[p.To], 7007), Started: w.started, Reported: now, FarReported: now}}
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

func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func pollOf(s snapshot.Snapshot) history.Poll { return polling().Poll(s, s.Time) }
