package upgrade

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var range2 = netip.MustParsePrefix("10.1.2.0/24")

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
		want := []string{
			"one gets 2", "1 crashes on two", "two gets 2", "one gets 1", "2 crashes on two", "two gets 1", "two gets 2", "two gets 1",
		}
		must.Equal(t, "", want, did)
		must.Equal(t, "stopped", "", m.Stopped)
		for name, rollout := range map[string]*Rollout{"upgrade": m.Upgrade, "rollback": m.Back} {
			r := rollout.Restart
			must.Equal(t, name, Restart{Node: "two"}, *r, outcome)
			must.Equal(t, name, 2*time.Second, r.Ready.Sub(r.Began))
			watched(t, r.Phase, 4*time.Second+settleFor, 5*time.Second+settleFor) // it is asked twice
		}
		p, back := pathOf(t, m.Upgrade.Restart.Phase, "in"), pathOf(t, m.Back.During, "in")
		must.Equal(t, p, [...]int{30, 300}, [...]int{p.Lost, int(p.LongestGapMS)})
		must.Equal(t, "", []LostIn{{"1 restarted on two", 30, 300}}, pathOf(t, m.Upgrade.During, "in").LostIn)
		must.Equal(t, back, [...]int{0, 0}, [...]int{back.Lost, len(back.LostIn)})
	})
}

// outcome compares how restarts have ended, and not when.
var outcome = cmpopts.IgnoreFields(Restart{}, "Began", "Ready", "Phase")

func watched(t *testing.T, p Phase, least, most time.Duration) {
	t.Helper()
	if d := lasted(p); d < least || d > most {
		t.Errorf("it was watched for %s, want %s to %s", d, least, most)
	}
}

// If an agent does not come back, the router keeps its routes for two minutes, and packets are lost only then: the
// rollout waits for the losses, and goes on.
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
			w.do(func() { w.sessions = map[netip.Addr]time.Time{node1: w.sessions[node1]} })
			go func() {
				time.Sleep(2 * time.Minute)
				w.announced(map[netip.Prefix][]netip.Addr{range1: {node1}})
				w.loses("out->two", restFor)
			}()
			return func(ctx context.Context) error { <-ctx.Done(); return errors.New("no session with two") }, nil
		}
		w.upgrading("two", func() { w.announced(both) })
		m := w.measures(t)
		r, back := m.Upgrade.Restart, m.Back.Restart
		must.Equal(t, "upgrade", Restart{Node: "two", NotBack: "no session with two; " + w.ending}, *r, outcome)
		must.Equal(t, "rollback", Restart{Node: "two", NotDone: "no such pod"}, *back, outcome)
		must.Equal(t, "ready", [...]bool{false, false}, [...]bool{!r.Ready.IsZero(), !back.Ready.IsZero()})
		watched(t, r.Phase, 2*time.Minute+restFor, 2*time.Minute+restFor+2*time.Second)
		p, nodes := pathOf(t, r.Phase, "in"), m.Upgrade.Nodes
		must.Equal(t, p, [...]any{"out->two", true}, [...]any{p.GapProbe, p.LongestGapMS >= restFor.Milliseconds()-1000})
		must.Equal(t, nodes, [...]any{"", 2, false}, [...]any{m.Stopped, len(nodes), nodes[1].Ready.IsZero()})
		must.Equal(t, "withdrawals", []string{range2.String()}, m.Upgrade.During.Routers[0].Withdrawals)
	})
}

// An agent works for a moment and ends once more: after the watch it is asked again.
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
		r, back := m.Upgrade.Restart, m.Back.Restart
		must.Equal(t, "upgrade", Restart{Node: "two", NotBack: "pod p on two was ready, and ended once more: agent"}, *r, outcome)
		must.Equal(t, "ready after", time.Second, r.Ready.Sub(r.Began))
		watched(t, r.Phase, settleFor+restFor, time.Hour) // for what is lost without it
		must.Equal(t, "rollback", Restart{Node: "two"}, *back, outcome)
		must.Equal(t, "the rollback is ready", false, back.Ready.IsZero())
	})
}

func TestRestartThatCannotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upgrade.Crash = func(context.Context, *framework.Run, string, string) (func(context.Context) error, error) {
			return func(context.Context) error { return errors.New("connection refused") }, nil
		}
		must.Equal(t, "", Restart{Node: "two", NotDone: "connection refused"}, *w.measures(t).Upgrade.Restart, outcome)
	})
}

// A version that does no new work stops the rollout. A version that ends some time later is found after the rollout.
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
				must.Equal(t, time.Since(began), false, time.Since(began) < time.Second)
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
			must.Contain(t, "begins "+m.Upgrade.NotWorking, "begins "+c.notWorking)
			must.Contain(t, m.Stopped, c.stopped)
			silent := [...]bool{m.Upgrade.NotWorking == "", m.Stopped == ""}
			must.Equal(t, m, [...]bool{c.notWorking == "", c.stopped == ""}, silent)
			rolled := len(each.Where(m.Upgrade.Nodes, func(n NodeStep) bool { return !n.Ready.IsZero() }))
			must.Equal(t, m.Back, [...]any{c.rolled, "", 2}, [...]any{rolled, m.Back.NotWorking, len(m.Back.Nodes)})
		})
	}
}

// If a version stopped the upgrade, the rollback restarts no agent of that version. With one node there is no middle.
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
			must.Equal(t, "agents that crashed", c.want, crashed)
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
			must.Equal(t, m.Stopped, want, did)
			must.Equal(t, m.Stopped, half == nil, m.Stopped == "")
			if half == nil {
				must.Equal(t, m.Upgrade, [...]any{1, "all"}, [...]any{len(m.Upgrade.Nodes), m.Upgrade.Restart.Node})
			}
		})
	}
}

func TestRestartThatIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		w.upgrade.Crash = func(context.Context, *framework.Run, string, string) (func(context.Context) error, error) {
			return func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }, nil
		}
		m, err := w.run(ctx, t, t.TempDir())
		r := m.Upgrade.Restart
		must.Equal(t, err, [...]bool{true, true}, [...]bool{err != nil, r.NotDone != ""})
		must.Equal(t, m.Upgrade, [...]any{"", true, 1}, [...]any{r.NotBack, m.Back == nil, len(m.Upgrade.Nodes)})
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

// A pod's version is the version of the agent's container, not of a container beside it.
func TestRuns(t *testing.T) {
	r := metallb.Release{Version: "0.14.8"}
	var pod corev1.Pod
	for _, image := range r.Images() { // all versions have the same FRR
		if !strings.Contains(image, "controller") {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: image})
		}
	}
	must.Equal(t, pod.Spec.Containers, 2, len(pod.Spec.Containers))
	must.NoError(t, runs(pod, metallb.SpeakerImage("0.14.8")))
	must.Fail(t, runs(pod, metallb.SpeakerImage("0.14.9")), "")
}
