package upgrade

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/must"
)

func pathOf(t *testing.T, p Phase, name string) Path {
	t.Helper()
	i := slices.IndexFunc(p.Paths, func(p Path) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("no path %q in %+v", name, p.Paths)
	}
	return p.Paths[i]
}

// The upgrade loses a node's packets for 300 ms and a connection, and the router loses the
// node's range for a second. The rollback loses nothing and leaves a rule.
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
		if m.Stopped != "" || m.Component != "thing" || m.Form != "whole" || !w.stopped {
			t.Errorf("%+v", m)
		}
		none := func(name string, p Phase) {
			t.Helper()
			for _, path := range p.Paths {
				if path.Lost+path.Broken+path.NotJudged != 0 || path.LongestGapMS != 0 || path.LongestSilenceMS != 0 || path.GapProbe != "" || path.Answered == 0 {
					t.Errorf("%s: %+v", name, path)
				}
			}
			want := []Router{{Name: "tor", Due: p.Routers[0].Due, Polls: p.Routers[0].Polls,
				Withdrawals: []string{}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{}, Events: []RouterEvent{}}}
			must.Equal(t, name, want, p.Routers)
		}
		none("at rest", m.Resting)
		none("after the upgrade", m.Upgrade.After)
		none("the rollback", m.Back.During)
		none("after the rollback", m.Back.After)
		if d := m.Resting.Ended.Sub(m.Resting.Began); d != restFor || m.Resting.Routers[0].Due != 100 || m.Resting.Routers[0].Polls < 99 {
			t.Errorf("%s at rest, with %+v", d, m.Resting.Routers)
		}

		for _, p := range []Phase{m.Upgrade.After, m.Back.After} {
			if p.Ended.Sub(p.Began) != m.Resting.Ended.Sub(m.Resting.Began) {
				t.Errorf("it was watched from %s to %s, which is not as long as at rest", p.Began, p.Ended)
			}
		}

		during := m.Upgrade.During
		in := pathOf(t, during, "in")
		must.Equal(t, "the upgrade took", 8*time.Second, during.Ended.Sub(during.Began))
		want := Path{Name: "in", Probes: []string{"out->one", "out->two"}, Due: 1600, Sent: 1600, Answered: 1570, Lost: 30, LongestGapMS: 300, GapProbe: "out->one", LongestSilenceMS: 300, SilenceProbe: "out->one"}
		must.Equal(t, "", want, in)
		if one := pathOf(t, during, "in, one way"); one.Lost != 30 || one.Due != 800 || one.LongestGapMS != 300 {
			t.Errorf("%+v", one)
		}
		if long := pathOf(t, during, "long"); long.Broken != 1 || long.Lost != 0 {
			t.Errorf("%+v", long)
		}
		wantRouter := Router{
			Name: "tor", Due: 40, Polls: 40, Withdrawals: []string{"10.1.1.0/24"}, NextHops: []string{}, Resets: []string{}, TwoOrigins: []string{},
			Events: []RouterEvent{{Says: "10.1.1.0/24 is withdrawn"}, {Says: "10.1.1.0/24 is announced by two"}},
		}
		must.Equal(t, "", wantRouter, during.Routers[0], cmpopts.IgnoreFields(RouterEvent{}, "At"))
		if got := m.Upgrade.Nodes; len(got) != 2 || got[0].Node != "one" || got[0].Ready.Sub(got[0].Began) != 5*time.Second || m.Upgrade.From != "1" || m.Upgrade.To != "2" {
			t.Errorf("%+v", m.Upgrade)
		}
		if m.Back.From != "2" || m.Back.To != "1" || len(m.Back.Nodes) != 2 {
			t.Errorf("%+v", m.Back)
		}
		must.Equal(t, "", []Difference{{Node: "two", Kind: "rule", What: "ip rule 9: from all lookup 77", Added: true}}, m.Left)
	})
}

// A version that does not come up ends the upgrade, and the changed nodes are rolled back.
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
		if want := "thing 2 took the place of 1 on 0 of 2 nodes: node one: it does not start (it took longer than 5s)"; m.Stopped != want {
			t.Errorf("stopped: %s", m.Stopped)
		}
		if m.Upgrade.Ends != w.ending || m.Back.Ends != "" {
			t.Errorf("it ends: %q, and after the rollback %q", m.Upgrade.Ends, m.Back.Ends)
		}
		if want := []string{"one 2", "one 1"}; !slices.Equal(rolled, want) {
			t.Errorf("rolled %v, want %v", rolled, want)
		}
		if len(m.Upgrade.Nodes) != 1 || !m.Upgrade.Nodes[0].Ready.IsZero() || !m.Upgrade.After.Ended.IsZero() || len(m.Upgrade.After.Paths) != 0 {
			t.Errorf("%+v", m.Upgrade)
		}
		if d := m.Upgrade.During.Ended.Sub(m.Upgrade.During.Began); d != 5*time.Second || pathOf(t, m.Upgrade.During, "in").Answered == 0 {
			t.Errorf("%+v", m.Upgrade.During)
		}
		if m.Back == nil || m.Back.After.Ended.IsZero() || m.Left == nil || len(m.Left) != 0 {
			t.Errorf("%+v, left %v", m.Back, m.Left)
		}
	})
}

// An interrupt in each phase ends the trip; what was measured is kept.
func TestTripThatIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		holds func(m Measures) bool
	}{
		{"at rest", 6 * time.Second, func(m Measures) bool {
			rested := m.Resting.Ended.Sub(m.Resting.Began)
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
			ctx, cancel := context.WithTimeout(t.Context(), c.after)
			defer cancel()
			m, err := w.run(ctx, t, t.TempDir())
			if !errors.Is(err, engine.ErrInterrupted) || m.Stopped != "" || !w.stopped || !c.holds(m) {
				t.Errorf("%v; stopped %q; %+v", err, m.Stopped, m)
			}
		})
	}
}

// A lab that is not clean before the upgrade proves nothing about it.
func TestTripThatDoesNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.loses("out->one", time.Hour)
		if m := w.measures(t); !strings.Contains(m.Stopped, "before the upgrade not every path was clean") || !strings.Contains(m.Stopped, "out->one: ") || m.Upgrade != nil || m.Left != nil || !w.stopped {
			t.Errorf("%+v", m)
		}
		w = newWorld()
		delete(w.kernels, "two")
		must.Fail(t, must.Err(w.run(t.Context(), t, t.TempDir())), "reading the kernel of two")
	})
}

// What the new version does to a node shows only if the old one comes back at once.
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
		if u := m.Undone; rolls != 6 || m.Stopped != "" || u == nil || u.Node != "two" || u.NotDone != "" || pathOf(t, m.Back.After, "in").Lost != 0 {
			t.Fatalf("%d, %+v", rolls, m)
		}
		if p := pathOf(t, m.Undone.Phase, "in"); p.Lost != 500 || p.Answered != 500 {
			t.Errorf("%+v", p)
		}
		for _, fails := range []int{5, 6} { // on the way there, and on the way back
			w, rolls = newWorld(), 0
			w.upgrade.Roll = func(context.Context, *framework.Run, string, string) error {
				if rolls++; rolls == fails {
					return errors.New("no such image")
				}
				return nil
			}
			if u := w.measures(t).Undone; u == nil || u.NotDone != "no such image" || u.Phase.Paths != nil {
				t.Errorf("%d: %+v", fails, u)
			}
		}
	})
}

// An upgrade is often made to mend a path.
func TestTripFromVersionThatDoesNotServeOnePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.loses("out->one", time.Hour)
		w.loses("out->two", time.Hour)
		if m := w.measures(t); m.Stopped != "" || m.Back == nil || !pathOf(t, m.Resting, "in").Unserved() || pathOf(t, m.Resting, "long").Unserved() {
			t.Errorf("%+v", m)
		}
	})
}

// A record of another upgrade, or none, gives no measures.
func TestStoredRefuses(t *testing.T) {
	w := newWorld()
	w.noLab = errors.New("no lab")
	dir := t.TempDir()
	if _, err := w.run(t.Context(), t, dir); err == nil {
		t.Fatal("there is a lab")
	}
	must.Fail(t, must.Err(Stored(dir, w.upgrade, "1", "3")), "is of thing 1 to 2, not of thing 1 to 3")
	if _, err := Stored(t.TempDir(), w.upgrade, "1", "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
}

// declaredUpgrades are an upgrade of each kind.
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
		if err := u.Topology.Validate(); err != nil {
			t.Errorf("%s: %v", component, err)
		}
		if len(u.ImagesOf(d.from, d.to)) < 3 || !strings.Contains(u.about(), "worker2") {
			t.Errorf("%s: images %v on %s", component, u.ImagesOf(d.from, d.to), u.about())
		}
		names := map[string]bool{}
		for _, e := range u.Ends {
			names[e.Name] = true
		}
		for _, p := range u.probes() {
			if err := p.Validate(); err != nil || !names[p.From] || !names[p.To] {
				t.Errorf("%s: %s: %v", component, p.Name, err)
			}
		}
		for _, node := range u.Nodes {
			if _, there := u.Topology.AddressOn(node, "nodes"); !there {
				t.Errorf("%s: no node %s", component, node)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(components)); !slices.Equal(got, Components()) {
		t.Errorf("components %v", Components())
	}
	if Has("ciliun") {
		t.Error("a component that is none has an upgrade")
	}
}
