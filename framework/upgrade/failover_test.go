package upgrade

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// A failover is tried with each version and undone. Who answers, and to whom the router sends, is
// measured from the failover on. With the new version nobody takes the address.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		vip := netip.MustParseAddr("10.0.0.99")
		entry := func(address netip.Addr, mac string, answers ...snapshot.Answer) snapshot.LinkNeighbor {
			return snapshot.LinkNeighbor{Address: address, MAC: mac, Answers: answers}
		}
		answers := func(mac string, also ...snapshot.Answer) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.links = []snapshot.LinkNeighbor{entry(node1, "m1"), entry(node2, "m2"), entry(vip, mac, also...)}
		}
		answers("m1", snapshot.Answer{MAC: "m2", Gratuitous: 3, Announced: time.Now()})
		w.upgrade.Paths = append(w.upgrade.Paths, PathKind{Name: "vip, outside, UDP", Probes: []probe.Probe{{From: "out", To: "vip"}}})
		version, undone := "1", 0
		w.upgrade.Release = func(v string) framework.Action {
			return func(context.Context, *framework.Run) error { version = v; return nil }
		}
		w.upgrade.Failovers = []FailoverKind{{
			Name: "lost", Path: "vip", address: func() netip.Addr { return vip },
			do: func(_ context.Context, _ *framework.Run, node string) (func(context.Context) error, error) {
				must.Equal(t, "answers", "one", node)
				w.loses("out->vip", 3*time.Second)
				if version == "1" {
					time.AfterFunc(time.Second, func() {
						answers("m1", snapshot.Answer{MAC: "m2", Gratuitous: 5, Announced: time.Now(), Replied: time.Now().Add(10 * time.Millisecond)})
					})
					time.AfterFunc(2500*time.Millisecond, func() { answers("m2", snapshot.Answer{MAC: "m2", Gratuitous: 5}) })
				}
				return func(context.Context) error { undone++; answers("m1"); return nil }, nil
			},
		}}
		m := w.measures(t)
		if len(m.Failovers) != 2 || undone != 2 || m.Stopped != "" {
			t.Fatalf("%+v, undone %d times; stopped %q", m.Failovers, undone, m.Stopped)
		}
		old, now := m.Failovers[0], m.Failovers[1]
		if old.MovedMS < 2500 || old.MovedMS > 2500+pollEvery.Milliseconds() || old.Paths[0].LongestGapMS != 3000 {
			t.Errorf("%+v", old)
		}
		old.Began, old.Paths, old.MovedMS = time.Time{}, nil, 0
		want := Failover{Name: "lost", Version: "1", From: "one", To: "two", AnsweredMS: 1000, Announced: 2}
		must.Equal(t, "", want, old)
		if now.Version != "2" || now.From != "one" || now.To != "" || !now.NotBack {
			t.Errorf("%+v", now)
		}
		for _, phase := range []Phase{m.Resting, m.Upgrade.During, m.Back.After} {
			if p := pathOf(t, phase, "vip, outside, UDP"); p.Lost > 0 {
				t.Errorf("what a failover loses is counted elsewhere: %+v", p)
			}
		}
	})
}

func TestFailoverIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upgrade.Failovers = []FailoverKind{{
			Name: "lost", address: func() netip.Addr { return node1 },
			do: func(context.Context, *framework.Run, string) (func(context.Context) error, error) {
				return nil, errors.New("no")
			},
		}}
		m := w.measures(t)
		if len(m.Failovers) != 2 || m.Failovers[0].NotDone != "no node answers for 10.0.0.1: nobody does" {
			t.Errorf("%+v", m.Failovers)
		}
	})
}

func TestConnectionsByARPAreOmitted(t *testing.T) {
	l := layer2{ranges: []snapshot.AddressRange{{First: netip.MustParseAddr("10.0.0.90"), Last: netip.MustParseAddr("10.0.0.99")}}}
	said := func(_, what string) string { return what + "!" }
	for what, want := range map[string]string{
		"tcp from 10.9.0.1 to 10.0.0.99:7007, answered by 10.1.1.7:7007": "", "tcp from 10.9.0.1 to 10.0.0.1:7007": "tcp from 10.9.0.1 to 10.0.0.1:7007!", "x": "x!",
	} {
		must.Equal(t, what, want, l.normalize(said)("connection", what))
	}
	if got := l.normalize(said)("rule", "from a to 10.0.0.99:1"); got == "" {
		t.Error("a rule is omitted")
	}
}

// Several stations that answer for longer than a change takes are told once.
func TestTwoAnswerers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		vip := netip.MustParseAddr("10.0.0.99")
		answer := func(macs ...string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			l := snapshot.LinkNeighbor{Address: vip, MAC: "m1"}
			for _, mac := range macs { // they go on
				l.Answers = append(l.Answers, snapshot.Answer{MAC: mac, Replied: time.Now().Add(time.Hour)})
			}
			w.links = []snapshot.LinkNeighbor{{Address: node1, MAC: "m1"}, l}
		}
		answer("m1")
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			for _, lasts := range []time.Duration{time.Second, 10 * time.Second} {
				if node == "one" && version == "2" {
					answer("m1", "m9")
				}
				time.Sleep(lasts)
				answer("m1")
				time.Sleep(time.Second)
			}
			return nil
		}
		r := w.measures(t).Upgrade.During.Routers[0]
		if len(r.Events) != 1 || r.Events[0].Says != "10.0.0.99 is answered for by m9 and one at once" || len(r.TwoAnswerers) != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// The router's view of who answers changes in a rollout.
func TestAnswerers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		vip := netip.MustParseAddr("10.0.0.99")
		w.links = []snapshot.LinkNeighbor{{Address: node1, MAC: "m1"}, {Address: vip, MAC: "m1"}}
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			time.Sleep(time.Second)
			w.mu.Lock()
			defer w.mu.Unlock()
			if node == "one" && version == "2" {
				w.links = []snapshot.LinkNeighbor{{Address: node1, MAC: "m1"}, {Address: vip, MAC: "m9"}}
			}
			return nil
		}
		m := w.measures(t)
		r := m.Upgrade.During.Routers[0]
		if len(r.Events) != 1 || r.Events[0].Says != "10.0.0.99 is answered for by m9, and was by one" || len(r.Answerers) != 1 {
			t.Errorf("%+v", r)
		}
	})
}
