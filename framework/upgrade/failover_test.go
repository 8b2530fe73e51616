package upgrade

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// The answering node, and the node that the router sends to, are measured from the failover on. With version 2 no other
// node answers for the address.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		vip := netip.MustParseAddr("10.0.0.99")
		answers := func(mac string, also ...snapshot.Answer) {
			nodes := []snapshot.LinkNeighbor{{Address: node1, MAC: "m1"}, {Address: node2, MAC: "m2"}}
			w.do(func() { w.links = append(nodes, snapshot.LinkNeighbor{Address: vip, MAC: mac, Answers: also}) })
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
		must.Equal(t, m.Failovers, [...]any{2, 2, ""}, [...]any{len(m.Failovers), undone, m.Stopped})
		old, now := m.Failovers[0], m.Failovers[1]
		moved := old.MovedMS >= 2500 && old.MovedMS <= 2500+pollEvery.Milliseconds()
		must.Equal(t, old, [...]any{true, int64(3000)}, [...]any{moved, old.Paths[0].LongestGapMS})
		ignored := cmpopts.IgnoreFields(Failover{}, "Began", "Paths", "MovedMS")
		want := Failover{Name: "lost", Version: "1", From: "one", To: "two", AnsweredMS: 1000, Announced: 2}
		must.Equal(t, "", want, old, ignored)
		must.Equal(t, now, [...]any{"2", "one", "", true}, [...]any{now.Version, now.From, now.To, now.NotBack})
		for _, phase := range []Phase{m.Resting, m.Upgrade.During, m.Back.After} {
			must.Equal(t, "what a failover loses is counted elsewhere", 0, pathOf(t, phase, "vip, outside, UDP").Lost)
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
		f := w.measures(t).Failovers
		must.Equal(t, f, [...]any{2, "no node answers for 10.0.0.1: nobody does"}, [...]any{len(f), f[0].NotDone})
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
	must.Equal(t, "a rule", false, l.normalize(said)("rule", "from a to 10.0.0.99:1") == "")
}

// Several stations that answer for longer than a change takes are reported once.
func TestAnswerers(t *testing.T) {
	vip := netip.MustParseAddr("10.0.0.99")
	for _, test := range []struct {
		says      string
		answerers [2]int // others, and several
		upgrade   func(answer func(mac string, all ...string))
	}{
		{"10.0.0.99 is answered for by m9, and was by one", [2]int{1, 0}, func(answer func(string, ...string)) {
			time.Sleep(time.Second)
			answer("m9")
			time.Sleep(time.Second)
		}},
		{"10.0.0.99 is answered for by m9 and one at once", [2]int{0, 1}, func(answer func(string, ...string)) {
			for _, lasts := range []time.Duration{time.Second, 10 * time.Second} {
				answer("m1", "m1", "m9")
				time.Sleep(lasts)
				answer("m1", "m1")
				time.Sleep(time.Second)
			}
		}},
	} {
		inBubble(t, test.says, func(t *testing.T) {
			w := newWorld()
			answer := func(mac string, all ...string) {
				l := snapshot.LinkNeighbor{Address: vip, MAC: mac}
				for _, mac := range all { // all go on answering
					l.Answers = append(l.Answers, snapshot.Answer{MAC: mac, Replied: time.Now().Add(time.Hour)})
				}
				w.do(func() { w.links = []snapshot.LinkNeighbor{{Address: node1, MAC: "m1"}, l} })
			}
			answer("m1")
			w.upgrading("one", func() { test.upgrade(answer) })
			r := w.measures(t).Upgrade.During.Routers[0]
			must.Equal(t, "events", []string{test.says}, each.Of(r.Events, func(e RouterEvent) string { return e.Says }))
			must.Equal(t, r, test.answerers, [...]int{len(r.Answerers), len(r.TwoAnswerers)})
		})
	}
}
