package upgrade

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

func pathOf(t *testing.T, p Phase, name string) Path {
	t.Helper()
	path, there := each.First(p.Paths, func(p Path) bool { return p.Name == name })
	must.Equal(t, "there is a path "+name, true, there)
	return path
}

// The upgrade loses a node's packets for 300 ms and a connection, and the router loses the node's range for a second.
// The rollback loses nothing and leaves a rule.
func TestTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.upgrade.Release = func(version string) framework.Action {
			return func(context.Context, *framework.Run) error {
				if version == "1" {
					w.kernels["two"] = "== ip rule\n9: from all lookup 77\n"
				}
				return nil
			}
		}
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			if node == "one" && version == "2" {
				time.Sleep(time.Second)
				w.loses("out->one", 300*time.Millisecond)
				w.broken["out->one/stream"] = append(w.broken["out->one/stream"], time.Now())
				w.announced(nil)
				time.Sleep(time.Second)
				w.announced(map[netip.Prefix][]netip.Addr{range1: {node2}})
			}
			time.Sleep(3 * time.Second)
			return nil
		}
		m := w.measures(t)
		must.Equal(t, "", [...]any{"", "thing", "whole", true}, [...]any{m.Stopped, m.Component, m.Form, w.stopped})
		none := func(name string, p Phase) {
			t.Helper()
			for _, path := range p.Paths {
				lost := path.Lost + path.Broken + path.NotJudged + int(path.LongestGapMS+path.LongestSilenceMS)
				must.Equal(t, path, [...]any{0, "", true}, [...]any{lost, path.GapProbe, path.Answered > 0})
			}
			want := []Router{{Name: "tor", Due: p.Routers[0].Due, Polls: p.Routers[0].Polls,
				Withdrawals: []string{}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{}, Events: []RouterEvent{}}}
			must.Equal(t, name, want, p.Routers)
		}
		none("at rest", m.Resting)
		none("after the upgrade", m.Upgrade.After)
		none("the rollback", m.Back.During)
		none("after the rollback", m.Back.After)
		must.Equal(t, "polls at rest", [...]any{100, true}, [...]any{m.Resting.Routers[0].Due, m.Resting.Routers[0].Polls >= 99})
		for _, p := range []Phase{m.Resting, m.Upgrade.After, m.Back.After} {
			must.Equal(t, "it was watched for", restFor, lasted(p))
		}
		during := m.Upgrade.During
		must.Equal(t, "the upgrade took", 8*time.Second, lasted(during))
		want := Path{Name: "in", Probes: []string{"out->one", "out->two"}, Due: 1600, Sent: 1600, Answered: 1570, Lost: 30,
			LongestGapMS: 300, GapProbe: "out->one", LongestSilenceMS: 300, SilenceProbe: "out->one"}
		must.Equal(t, "", want, pathOf(t, during, "in"))
		one, long := pathOf(t, during, "in, one way"), pathOf(t, during, "long")
		must.Equal(t, one, [...]int{30, 800, 300}, [...]int{one.Lost, one.Due, int(one.LongestGapMS)})
		must.Equal(t, long, [...]int{1, 0}, [...]int{long.Broken, long.Lost})
		wantRouter := Router{
			Name: "tor", Due: 40, Polls: 40, Withdrawals: []string{"10.1.1.0/24"}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{},
			Events: []RouterEvent{{Says: "10.1.1.0/24 is withdrawn"}, {Says: "10.1.1.0/24 is announced by two"}},
		}
		must.Equal(t, "", wantRouter, during.Routers[0], cmpopts.IgnoreFields(RouterEvent{}, "At"))
		first := m.Upgrade.Nodes[0]
		must.Equal(t, m.Upgrade, [...]any{"one", 5 * time.Second}, [...]any{first.Node, first.Ready.Sub(first.Began)})
		must.Equal(t, m.Upgrade, [...]any{"1", "2", 2}, [...]any{m.Upgrade.From, m.Upgrade.To, len(m.Upgrade.Nodes)})
		must.Equal(t, m.Back, [...]any{"2", "1", 2}, [...]any{m.Back.From, m.Back.To, len(m.Back.Nodes)})
		must.Equal(t, "", []Difference{{Node: "two", Kind: "rule", What: "ip rule 9: from all lookup 77", Added: true}}, m.Left)
	})
}

func TestTripThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var rolled []string
		w.upgrade.Nodes = []string{"one", "two"}
		w.upgrade.RollWithin = 5 * time.Second
		w.ending = "thing on one ended 3 times, with status 1: no such flag"
		w.upgrade.Roll = func(ctx context.Context, _ *framework.Run, node, version string) error {
			rolled = append(rolled, node+" "+version)
			if version == "2" {
				<-ctx.Done()
				return errors.New("it does not start")
			}
			return nil
		}
		m := w.measures(t)
		const stopped = "thing 2 took the place of 1 on 0 of 2 nodes: node one: it does not start (it took longer than 5s)"
		must.Equal(t, "stopped", stopped, m.Stopped)
		must.Equal(t, "it ends, and after the rollback", [...]string{w.ending, ""}, [...]string{m.Upgrade.Ends, m.Back.Ends})
		must.Equal(t, "rolled", []string{"one 2", "one 1"}, rolled)
		nodes, during, after := m.Upgrade.Nodes, m.Upgrade.During, m.Upgrade.After
		must.Equal(t, nodes, [...]any{1, true}, [...]any{len(nodes), nodes[0].Ready.IsZero()})
		must.Equal(t, after, [...]any{true, 0}, [...]any{after.Ended.IsZero(), len(after.Paths)})
		must.Equal(t, during, [...]any{5 * time.Second, true}, [...]any{lasted(during), pathOf(t, during, "in").Answered > 0})
		must.Equal(t, "rolled back", false, m.Back.After.Ended.IsZero())
		must.Equal(t, "left", []Difference{}, m.Left)
	})
}

func TestTripThatIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		name  string
		delay time.Duration
		holds func(m Measures) bool
	}{
		{"at rest", 6 * time.Second, func(m Measures) bool {
			rested := lasted(m.Resting)
			return m.Upgrade == nil && rested > time.Second && rested < restFor && m.Resting.Paths[0].Answered > 0
		}},
		{"in the upgrade", 28 * time.Second, func(m Measures) bool {
			return m.Back == nil && m.Upgrade.During.Paths[0].Answered > 0 && m.Upgrade.After.Ended.IsZero()
		}},
		{"after the upgrade", 56 * time.Second, func(m Measures) bool { return m.Back == nil && m.Upgrade.After.Paths[0].Answered > 0 }},
		{"on the rollback", 72 * time.Second, func(m Measures) bool { return m.Back.During.Paths[0].Answered > 0 && m.Left == nil }},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			w := newWorld()
			w.upgrade.Roll = func(ctx context.Context, _ *framework.Run, node, version string) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(10 * time.Second):
					return nil
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.delay)
			defer cancel()
			m, err := w.run(ctx, t, t.TempDir())
			must.Equal(t, m, [...]any{"", true, true}, [...]any{m.Stopped, w.stopped, c.holds(m)})
			must.Equal(t, err, true, errors.Is(err, engine.ErrInterrupted))
		})
	}
}

// A lab that is not clean before the upgrade proves nothing about it.
func TestTripThatDoesNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.loses("out->one", time.Hour)
		m := w.measures(t)
		must.Contain(t, m.Stopped, "before the upgrade not every path was clean", "out->one: ")
		must.Equal(t, m, [...]bool{true, true, true}, [...]bool{m.Upgrade == nil, m.Left == nil, w.stopped})
		w = newWorld()
		delete(w.kernels, "two")
		must.Fail(t, must.Err(w.run(t.Context(), t, t.TempDir())), "reading the kernel of two")
	})
}

// Some effects of the new version on a node show only if the old version comes back at once.
func TestTripThatIsUndoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		rolls := 0
		w.upgrade.Roll = func(_ context.Context, _ *framework.Run, node, version string) error {
			if rolls++; rolls == 6 { // two nodes there and back, and then one there and back
				w.loses("out->two", time.Hour)
			}
			return nil
		}
		m := w.measures(t)
		u, p := m.Undone, pathOf(t, m.Undone.Phase, "in")
		must.Equal(t, m, [...]any{6, "", "two", ""}, [...]any{rolls, m.Stopped, u.Node, u.NotDone})
		must.Equal(t, p, [...]int{0, 500, 500}, [...]int{pathOf(t, m.Back.After, "in").Lost, p.Lost, p.Answered})
		for _, fails := range []int{5, 6} { // on the way there, and on the way back
			w, rolls = newWorld(), 0
			w.upgrade.Roll = func(context.Context, *framework.Run, string, string) error {
				if rolls++; rolls == fails {
					return errors.New("no such image")
				}
				return nil
			}
			u := w.measures(t).Undone
			must.Equal(t, fails, [...]any{"no such image", 0}, [...]any{u.NotDone, len(u.Phase.Paths)})
		}
	})
}

// An upgrade is often made to mend a path.
func TestTripFromVersionThatDoesNotServeOnePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.loses("out->one", time.Hour)
		w.loses("out->two", time.Hour)
		m := w.measures(t)
		must.Equal(t, m, [...]any{"", true}, [...]any{m.Stopped, m.Back != nil})
		unserved := [...]bool{pathOf(t, m.Resting, "in").Unserved(), pathOf(t, m.Resting, "long").Unserved()}
		must.Equal(t, m.Resting, [...]bool{true, false}, unserved)
	})
}

func TestStoredRefuses(t *testing.T) {
	w := newWorld()
	w.noLab = errors.New("no lab")
	dir := t.TempDir()
	must.Fail(t, must.Err(w.run(t.Context(), t, dir)), "no lab")
	must.Fail(t, must.Err(Stored(dir, w.upgrade, "1", "3")), "is of thing 1 to 2, not of thing 1 to 3")
	must.Equal(t, "no record", true, errors.Is(must.Err(Stored(t.TempDir(), w.upgrade, "1", "2")), fs.ErrNotExist))
}

var declaredUpgrades = []struct{ component, from, to string }{
	{"calico", "3.28.5", "3.28.5"}, {"cilium", "1.18.4", "1.19.3"},
	{"coredns", "1.12.1", "1.15.0"}, {"kube-proxy", "1.35.4", "1.36.3"},
	{"kube-router", "1.5.1", "2.1.0"}, {"metallb", "0.14.8", "0.14.9"},
}

func TestDeclarations(t *testing.T) {
	components := map[string]bool{}
	for _, d := range declaredUpgrades {
		component := d.component
		components[component] = true
		u := declared(t, component, d.from, d.to, Settings{})
		must.Equal(t, "", component, u.Component)
		must.NoError(t, u.Topology.Validate())
		must.Equal(t, "has three images: "+component, true, len(u.ImagesOf(d.from, d.to)) >= 3)
		must.Contain(t, u.about(), "worker2")
		must.Equal(t, "is restarted in the middle of a rollout: "+component, true, u.Crash != nil)
		names := map[string]bool{}
		for _, e := range u.Ends {
			names[e.Name] = true
		}
		for _, p := range u.probes() {
			must.NoError(t, p.Validate())
			must.Equal(t, p, [...]bool{true, true}, [...]bool{names[p.From], names[p.To]})
		}
		for _, node := range u.Nodes {
			_, there := u.Topology.AddressOn(node, "nodes")
			must.Equal(t, component+" on "+node, true, there)
		}
	}
	must.Equal(t, "components", slices.Sorted(maps.Keys(components)), Components())
	must.Equal(t, "has a component that is none", false, Has("ciliun"))
}

// The lab goes down in every case, and one of another process is not touched.
func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name                      string
		noImages, noLab, noProbes error
		half                      bool
		interrupt, panics         bool
		did                       string
		says                      string
		logs                      bool
	}{
		{name: "an image does not build", noImages: broken, did: "remnants down", says: "broken"},
		{name: "no lab comes up", noLab: broken, did: "remnants down", says: "broken"},
		{name: "half a lab comes up", noLab: broken, half: true, did: "down", says: "broken", logs: true},
		{name: "the lab is another process's", noLab: &kindlab.HeldError{}, says: (&kindlab.HeldError{}).Error()},
		{name: "no endpoint answers", noProbes: errors.New("no agent answers"), did: "down", says: "no agent answers", logs: true},
		{name: "an interrupt", interrupt: true, did: "down", says: engine.ErrInterrupted.Error()},
		{name: "a panic", panics: true, did: "down", says: "panic: no such thing", logs: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := newWorld()
			w.noImages, w.noLab, w.noProbes, w.half = c.noImages, c.noLab, c.noProbes, c.half
			w.upgrade.Install = func(string) framework.Action {
				return func(ctx context.Context, _ *framework.Run) error {
					if c.panics {
						panic("no such thing")
					}
					if c.interrupt {
						cancel()
					}
					return ctx.Err()
				}
			}
			output := t.TempDir()
			m, err := w.run(ctx, t, output)
			must.Fail(t, err, c.says)
			must.Equal(t, err, c.interrupt, errors.Is(err, engine.ErrInterrupted))
			must.Equal(t, "the lab", c.did, strings.Join(w.did, ", "))
			must.Equal(t, m, [...]any{"thing", true, true}, [...]any{m.Component, m.Upgrade == nil, m.Left == nil})
			must.Equal(t, "logs", c.logs, len(must.Get(filepath.Glob(filepath.Join(output, "*log-one*")))(t)) > 0)
			must.Equal(t, "images", []string{"relapse.dev/probe:dev", "relapse.dev/thing:1", "relapse.dev/thing:2"}, w.served)
		})
	}
}
