package detect

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// detected is what a detector finds. It fails the test if the detector finds anything else in
// snapshots that hold no more than it says that it reads, or where older ones hold no more than
// Forget leaves: every table of a detector's cases goes through here.
func detected(t *testing.T, d Detector, history []snapshot.Snapshot) []Finding {
	t.Helper()
	found := Run([]Detector{d}, history)
	if diff := cmp.Diff(found, Run([]Detector{d}, history)); diff != "" {
		t.Errorf("%s looks at more than %v (-all sources, +those):\n%s", d.Name(), d.Reads(), diff)
	}
	left := slices.Clone(history)
	Forget(left)
	if diff := cmp.Diff(found, Run([]Detector{d}, left)); diff != "" {
		t.Errorf("%s looks at what is forgotten (-all, +what is left):\n%s", d.Name(), diff)
	}
	return found
}

func sentenceOf(f Finding) string { return f.Says }

type greedy struct{ reads []snapshot.Source }

func (greedy) Name() string               { return "greedy" }
func (g greedy) Reads() []snapshot.Source { return g.reads }
func (greedy) Detect(history []snapshot.Snapshot, _ *Index) []Finding {
	var found []Finding
	for _, s := range history {
		for _, p := range s.Pods.Items {
			found = append(found, Finding{Kind: "pod", Object: Named(p.String())})
		}
		for _, m := range s.ConfigMaps.Items {
			found = append(found, Finding{Kind: "map", Object: Named(m.String())})
		}
	}
	return found
}

func TestLookShowsOnlyWhatIsRead(t *testing.T) {
	var s snapshot.Snapshot
	s.Pods = snapshot.List[snapshot.Pod]{Read: true, Items: []snapshot.Pod{{Namespace: "a", Name: "b"}}}
	s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Read: true, Items: []snapshot.ConfigMap{{Namespace: "a", Name: "x"}, {Namespace: "a", Name: "y"}}}
	for _, tt := range []struct {
		name  string
		reads []snapshot.Source
		want  []string
	}{
		{"nothing", nil, nil},
		{"one source", []snapshot.Source{snapshot.Pods}, []string{"a/b"}},
		{"one of two ConfigMaps", []snapshot.Source{snapshot.ConfigMaps("a/y")}, []string{"a/y"}},
		{"two ConfigMaps", []snapshot.Source{snapshot.ConfigMaps("a/y"), snapshot.ConfigMaps("a/x")}, []string{"a/x", "a/y"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := each.Of(Run([]Detector{greedy{tt.reads}}, []snapshot.Snapshot{s}), func(f Finding) string { return f.Object.String() })
			must.Equal(t, "", tt.want, got)
		})
	}
}

func TestForget(t *testing.T) {
	for _, c := range []struct {
		name      string
		ages      []time.Duration // of the snapshots, the oldest first
		withFlows int             // how many of them hold flows afterwards, up to the last
	}{
		{"none", nil, 0},
		{"one", []time.Duration{0}, 1},
		{"all within the time", []time.Duration{1900 * time.Millisecond, time.Second, 0}, 3},
		{"the newest that is old enough", []time.Duration{4 * time.Second, 2500 * time.Millisecond, time.Second, 0}, 3},
		{"just as old", []time.Duration{3 * time.Second, 2 * time.Second, time.Second, 0}, 3},
		{"slow looks", []time.Duration{18 * time.Second, 12 * time.Second, 6 * time.Second, 0}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var history []snapshot.Snapshot
			for _, age := range c.ages {
				history = append(history, snapshot.Snapshot{
					Time: start.Add(-age),
					NAT: []snapshot.NodeNAT{{
						Rules: snapshot.List[snapshot.Rule]{Read: true}, Flows: snapshot.List[snapshot.Flow]{Read: true, Items: make([]snapshot.Flow, 1)},
					}},
					Outside: []snapshot.HostSockets{{Host: "db"}},
				})
			}
			whole := slices.Clone(history)
			Forget(history)
			Forget(history) // it has been done for the older ones
			for i, s := range history {
				holds := i >= len(history)-c.withFlows
				must.Equal(t, c.ages[i], [4]bool{holds, holds, holds, true},
					[4]bool{s.NAT[0].Flows.Read, len(s.NAT[0].Flows.Items) == 1, len(s.Outside) == 1, s.NAT[0].Rules.Read})
				must.Equal(t, "that of the caller is whole", true, whole[i].NAT[0].Flows.Read)
			}
		})
	}
}

func TestID(t *testing.T) {
	base := Finding{
		Detector: "route-ownership", Kind: "unannounced", State: Active, Object: Prefix(netip.MustParsePrefix("10.5.115.0/24")),
		Owner: "node1", Announcer: "node2", Routers: []string{"tor2", "tor1"}, Says: "It is lost.",
	}
	const text = "route-ownership: active unannounced 10.5.115.0/24 of node1 announced by node2 on tor1, tor2"
	must.Equal(t, "String()", text, base.ID().String())
	for _, test := range []struct {
		name   string
		change func(*Finding)
		same   bool
	}{
		{"other pods and another sentence", func(f *Finding) { f.Pods, f.Says = []string{"default/web"}, "It is gone." }, true},
		{"routers in another order", func(f *Finding) { f.Routers = []string{"tor1", "tor2"} }, true},
		{"another detector", func(f *Finding) { f.Detector = "snat" }, false},
		{"another kind", func(f *Finding) { f.Kind = "swapped" }, false},
		{"another state", func(f *Finding) { f.State = Pending }, false},
		{"another object", func(f *Finding) { f.Object = Named("10.5.115.0") }, false},
		{"another owner", func(f *Finding) { f.Owner = "node2" }, false},
		{"another announcer", func(f *Finding) { f.Announcer = "" }, false},
		{"fewer routers", func(f *Finding) { f.Routers = []string{"tor1"} }, false},
	} {
		other := base
		test.change(&other)
		must.Equal(t, test.name, test.same, other.ID() == base.ID())
	}
}
