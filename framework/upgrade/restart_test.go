package upgrade

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

var range2 = netip.MustParsePrefix("10.1.2.0/24")

// An agent of the old version crashes when half of the nodes have the new one, and one of the
// new version when half are back.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var did []string
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			did = append(did, node+" gets "+version)
			time.Sleep(time.Second)
			return nil
		}
		w.upgrade.Crash = func(_ context.Context, _ *framework.Run, node, version string) (func(context.Context) error, error) {
			did = append(did, version+" crashes on "+node)
			if version == "1" {
				w.loses("out->two", 300*time.Millisecond)
			}
			return func(context.Context) error { time.Sleep(2 * time.Second); return nil }, nil
		}
		m := w.measures(t)
		if want := []string{"one gets 2", "1 crashes on two", "two gets 2", "one gets 1", "2 crashes on two", "two gets 1", "two gets 2", "two gets 1"}; !slices.Equal(did, want) || m.Stopped != "" {
			t.Errorf("did %v, want %v; stopped %q", did, want, m.Stopped)
		}
		for name, r := range map[string]*Rollout{"upgrade": m.Upgrade, "rollback": m.Back} {
			if r.Restart == nil || r.Restart.Node != "two" || r.Restart.NotBack != "" || r.Restart.NotDone != "" || r.Restart.Ready.Sub(r.Restart.Began) != 2*time.Second {
				t.Fatalf("%s: %+v", name, r.Restart)
			}
			if lasted := r.Restart.Phase.Ended.Sub(r.Restart.Phase.Began); lasted < 4*time.Second+settleFor || lasted > 5*time.Second+settleFor { // it is asked twice
				t.Errorf("%s: it was watched for %s", name, lasted)
			}
		}
		if p := pathOf(t, m.Upgrade.Restart.Phase, "in"); p.Lost != 30 || p.LongestGapMS != 300 {
			t.Errorf("%+v", p)
		}
		must.Equal(t, "", []LostIn{{"1 restarted on two", 30, 300}}, pathOf(t, m.Upgrade.During, "in").LostIn)
		if p := pathOf(t, m.Back.During, "in"); p.Lost != 0 || p.LostIn != nil {
			t.Errorf("%+v", p)
		}
	})
}

// An agent that crashed does not come back. The router keeps its routes for two minutes, and
// packets are lost only then: the rollout waits until that is seen, and goes on.
func TestRestartThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		both := map[netip.Prefix][]netip.Addr{range1: {node1}, range2: {node2}}
		w.announced(both)
		w.upgrade.RollWithin, w.ending = time.Minute, "speaker on two ended 5 times, with status 1: no matches for kind"
		w.upgrade.Crash = func(_ context.Context, _ *framework.Run, _, version string) (func(context.Context) error, error) {
			if version == "2" {
				return nil, errors.New("no such pod")
			}
			w.mu.Lock()
			w.sessions = map[netip.Addr]time.Time{node1: w.sessions[node1]}
			w.mu.Unlock()
			go func() {
				time.Sleep(2 * time.Minute)
				w.announced(map[netip.Prefix][]netip.Addr{range1: {node1}})
				w.loses("out->two", restFor)
			}()
			return func(ctx context.Context) error { <-ctx.Done(); return errors.New("no session with two") }, nil
		}
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			if node == "two" && version == "2" {
				w.announced(both)
			}
			return nil
		}
		m := w.measures(t)
		r := m.Upgrade.Restart
		if r == nil || !r.Ready.IsZero() || r.NotBack != "no session with two; "+w.ending || r.NotDone != "" {
			t.Fatalf("%+v", r)
		}
		if lasted := r.Phase.Ended.Sub(r.Phase.Began); lasted < 2*time.Minute+restFor || lasted > 2*time.Minute+restFor+2*time.Second {
			t.Errorf("it was watched for %s", lasted)
		}
		if p := pathOf(t, r.Phase, "in"); p.GapProbe != "out->two" || p.LongestGapMS < restFor.Milliseconds()-1000 {
			t.Errorf("%+v", p)
		}
		if m.Stopped != "" || len(m.Upgrade.Nodes) != 2 || m.Upgrade.Nodes[1].Ready.IsZero() || !slices.Equal(m.Upgrade.During.Routers[0].Withdrawals, []string{range2.String()}) {
			t.Errorf("%+v", m.Upgrade)
		}
		if back := m.Back.Restart; back == nil || back.NotDone != "no such pod" || back.NotBack != "" || !back.Ready.IsZero() {
			t.Errorf("the rollback: %+v", back)
		}
	})
}

// An agent works for a moment and ends once more: it is asked again when it has been watched.
func TestRestartForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upgrade.Crash = func(_ context.Context, _ *framework.Run, _, version string) (func(context.Context) error, error) {
			asked := 0
			return func(context.Context) error {
				time.Sleep(time.Second)
				if asked++; asked > 1 && version == "1" {
					return &workload.EndedError{Pod: "p", Node: "two", Containers: []string{"agent"}}
				}
				return nil
			}, nil
		}
		m := w.measures(t)
		r := m.Upgrade.Restart
		if r == nil || r.Ready.Sub(r.Began) != time.Second || r.NotBack != "pod p on two was ready, and ended once more: agent" || r.NotDone != "" {
			t.Fatalf("%+v", r)
		}
		if lasted := r.Phase.Ended.Sub(r.Phase.Began); lasted < settleFor+restFor {
			t.Errorf("what is lost without it was watched for %s", lasted)
		}
		if back := m.Back.Restart; back == nil || back.Ready.IsZero() || back.NotBack != "" {
			t.Errorf("the rollback: %+v", back)
		}
	})
}

// An error of a client that asks an agent says nothing of the agent.
func TestRestartThatCannotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upgrade.Crash = func(context.Context, *framework.Run, string, string) (func(context.Context) error, error) {
			return func(context.Context) error { return errors.New("connection refused") }, nil
		}
		if r := w.measures(t).Upgrade.Restart; r == nil || r.NotBack != "" || r.NotDone != "connection refused" {
			t.Errorf("%+v", r)
		}
	})
}

// A version that starts and does no new work stops the rollout, and one that ends when it has
// worked for some time is found after it.
func TestVersionThatDoesNotWork(t *testing.T) {
	late := &await.TimeoutError{What: "a new Service", Bound: time.Minute, Saw: "nothing"}
	ended := &workload.EndedError{Pod: "p", Node: "one", Containers: []string{"agent"}}
	for _, c := range []struct {
		name                string
		works, steady       error  // of version 2 on node two
		notWorking, stopped string // of the upgrade; whether it contains them
		rolled              int    // nodes on which 2 works
	}{
		{"it works", nil, nil, "", "", 2},
		{"no new work", late, nil, "node two: waited 1m0s for a new Service", "node two: ", 1},
		{"it cannot be asked", errors.New("connection refused"), nil, "", "node two: connection refused", 1},
		{"it ends some time later", nil, ended, "some time later, on node two: pod p on one was ready, and ended once more: agent", "some time later", 2},
		{"it cannot be asked later", nil, errors.New("connection refused"), "", "some time later, on node two: connection refused", 2},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			w := newWorld()
			at := map[string]string{}
			w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
				at[node] = version
				return nil
			}
			w.upgrade.Works = func(_ context.Context, _ *framework.Run, node, version string, began time.Time) error {
				time.Sleep(time.Second)
				if time.Since(began) < time.Second {
					t.Errorf("began %s ago", time.Since(began))
				}
				if node == "two" && version == "2" {
					return c.works
				}
				return nil
			}
			w.upgrade.Steady = func(_ context.Context, _ *framework.Run, node string) (func(context.Context) error, error) {
				version := at[node]
				return func(context.Context) error {
					if node == "two" && version == "2" {
						return c.steady
					}
					return nil
				}, nil
			}
			m := w.measures(t)
			if got := m.Upgrade.NotWorking; !strings.HasPrefix(got, c.notWorking) || (got == "") != (c.notWorking == "") {
				t.Errorf("not working: %q", got)
			}
			if !strings.Contains(m.Stopped, c.stopped) || (m.Stopped == "") != (c.stopped == "") {
				t.Errorf("stopped: %q", m.Stopped)
			}
			rolled := 0
			for _, n := range m.Upgrade.Nodes {
				if !n.Ready.IsZero() {
					rolled++
				}
			}
			if rolled != c.rolled || m.Back == nil || m.Back.NotWorking != "" || len(m.Back.Nodes) != 2 {
				t.Errorf("%d nodes; %+v", rolled, m.Back)
			}
		})
	}
}

// Where a version stopped the upgrade, no agent of it is restarted on the rollback, and with
// fewer than two nodes there is no middle.
func TestNoRestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes []string
		fails string // the node on which 2 does not come up
		want  []string
	}{
		{"one node", []string{"one"}, "", nil},
		{"a version that does not come up", []string{"one", "two"}, "two", []string{"1"}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			w := newWorld()
			w.upgrade.Nodes = c.nodes
			var crashed []string
			w.upgrade.Crash = func(_ context.Context, _ *framework.Run, _, version string) (func(context.Context) error, error) {
				crashed = append(crashed, version)
				return func(context.Context) error { return nil }, nil
			}
			w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
				if node == c.fails && version == "2" {
					return errors.New("no")
				}
				return nil
			}
			w.measures(t)
			if !slices.Equal(crashed, c.want) {
				t.Errorf("agents of %v crashed, want %v", crashed, c.want)
			}
		})
	}
}

// A component without agents is brought halfway, and one replica of the old version restarts.
func TestRestartOfReplica(t *testing.T) {
	for _, half := range []error{nil, errors.New("no half")} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.upgrade.Parts = []string{"all"}
			var did []string
			note := func(what string) func(context.Context, *framework.Run, string, string) error {
				return func(_ context.Context, _ *framework.Run, part, version string) error {
					did = append(did, what+" "+part+" "+version)
					if what == "half" && version == "2" {
						return half
					}
					return nil
				}
			}
			w.upgrade.Half, w.upgrade.Roll = note("half"), note("roll")
			w.upgrade.Crash = func(_ context.Context, _ *framework.Run, part, version string) (func(context.Context) error, error) {
				did = append(did, "crash "+part+" "+version)
				return func(context.Context) error { return nil }, nil
			}
			m := w.measures(t)
			want := []string{"half all 2", "crash all 1", "roll all 2", "half all 1", "crash all 2", "roll all 1"}
			if half != nil {
				want = []string{"half all 2", "half all 1", "roll all 1"}
			}
			if !slices.Equal(did, want) || (m.Stopped == "") != (half == nil) {
				t.Errorf("did %v, want %v; stopped %q", did, want, m.Stopped)
			}
			if half == nil && (len(m.Upgrade.Nodes) != 1 || m.Upgrade.Restart == nil || m.Upgrade.Restart.Node != "all") {
				t.Errorf("%+v", m.Upgrade)
			}
		})
	}
}

// An interrupt while an agent is awaited ends the trip. Nothing is known of the agent.
func TestRestartThatIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		w.upgrade.Crash = func(context.Context, *framework.Run, string, string) (func(context.Context) error, error) {
			return func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }, nil
		}
		m, err := w.run(ctx, t, t.TempDir())
		if err == nil {
			t.Error("no error")
		}
		if m.Upgrade.Restart == nil || m.Upgrade.Restart.NotDone == "" || m.Upgrade.Restart.NotBack != "" || m.Back != nil || len(m.Upgrade.Nodes) != 1 {
			t.Errorf("%+v", m.Upgrade)
		}
	})
}

func TestKeeping(t *testing.T) {
	w := newWorld()
	w.routes, w.sessions = map[netip.Prefix][]netip.Addr{range1: {node1}, range2: {node2}}, map[netip.Addr]time.Time{node1: time.Now()}
	poll := pollOf(w.poll())
	must.Equal(t, "with a session", "", keeping(w.upgrade.Topology, poll, "one"))
	must.Equal(t, "without a session", "tor has 10.1.2.0/24 without a session", keeping(w.upgrade.Topology, poll, "two"))
	w.routes = maps.Clone(w.routes)
	delete(w.routes, range2)
	must.Equal(t, "without a route", "", keeping(w.upgrade.Topology, pollOf(w.poll()), "two"))
	must.Contain(t, keeping(w.upgrade.Topology, pollOf(snapshot.Snapshot{}), "two"), "was not read")
}

// Each component is restarted in the middle of a rollout.
func TestEachComponentRestarts(t *testing.T) {
	for _, d := range declaredUpgrades {
		if u := declared(t, d.component, d.from, d.to, Settings{}); u.Crash == nil {
			t.Errorf("%s %s is never restarted in the middle of a rollout", d.component, d.from)
		}
	}
}
