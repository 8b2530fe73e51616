package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// briefly is an event without its time and its sentence.
func briefly(e Event) string {
	switch e.What {
	case FindingCame, FindingGone:
		return fmt.Sprintf("%s %s %s %s", e.What, e.Finding.State, e.Finding.Kind, e.Finding.Object)
	case SourceUnread, SourceRead:
		return e.What + " " + e.Source
	}
	return e.What
}

// A finding in both reads of an audit comes, a finding in none of them goes, and a finding of an unread source stays.
func TestChanges(t *testing.T) {
	well, wrong := cluster(false), cluster(true)
	with := func(s snapshot.Snapshot, change func(*snapshot.Snapshot)) snapshot.Snapshot {
		s.Routers = slices.Clone(s.Routers)
		change(&s)
		return s
	}
	noFIB := func(s *snapshot.Snapshot) { s.Routers[0].Routes = snapshot.List[snapshot.Route]{Error: "no ip(8)"} }
	noPods := func(s *snapshot.Snapshot) { s.Pods = snapshot.List[snapshot.Pod]{Error: "no answer"} }
	noNodes := func(s *snapshot.Snapshot) { s.Nodes = snapshot.List[snapshot.Node]{Error: "gone"} }
	const (
		active   = "finding active unannounced 10.5.115.0/24"
		latent   = "finding latent absent-node 10.5.113.0/24"
		noActive = "gone active unannounced 10.5.115.0/24"
		noLatent = "gone latent absent-node 10.5.113.0/24"
	)
	type round struct {
		reads [2]snapshot.Snapshot
		tells []string
	}
	twice := func(s snapshot.Snapshot, tells ...string) round { return round{[2]snapshot.Snapshot{s, s}, tells} }
	begun := twice(wrong, latent, active)
	for _, test := range []struct {
		name   string
		audits []round
		last   []string // findings of the last state
		err    string
	}{
		{"well", []round{twice(well), twice(well)}, nil, ""},
		{"wrong from the beginning", []round{begun, twice(wrong)}, []string{active, latent}, ""},
		{"it begins, and ends", []round{twice(well), begun, twice(well, noLatent, noActive)}, nil, ""},
		{"half of a change", []round{twice(well), {[2]snapshot.Snapshot{well, wrong}, nil}}, nil, ""},
		{"one read lacks it", []round{begun, {[2]snapshot.Snapshot{well, wrong}, nil}, twice(wrong)}, []string{active, latent}, ""},
		{"a source is lost, and what it showed stays", []round{begun, twice(with(well, noPods), "unread Pods")}, []string{active, latent}, ""},
		{"a source is lost for a time", []round{begun, twice(with(well, noPods), "unread Pods"), twice(well, "read Pods", noLatent, noActive)}, nil, ""},
		{"what was not read before either can go", []round{
			twice(with(wrong, noPods), "unread Pods", latent, active), twice(with(well, noPods), noLatent, noActive),
		}, nil, ""},
		{"one read of two is not enough to see it go", []round{begun, {[2]snapshot.Snapshot{with(well, noPods), well}, []string{"unread Pods"}}},
			[]string{active, latent}, ""},
		{"a router is not judged for a time", []round{
			twice(well), twice(with(well, noFIB), "unread FIB of tor1", "not-judged"), twice(well, "read FIB of tor1", "judged"),
		}, nil, ""},
		{"no Nodes for a time", []round{begun, twice(with(well, noNodes), "unread Nodes"), twice(wrong, "read Nodes")}, []string{active, latent}, ""},
		{"no Nodes at the end", []round{twice(well), twice(with(well, noNodes), "unread Nodes")}, nil, "the cluster cannot be read: gone"},
		{"interrupted at once", nil, nil, "the first audit has not ended"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c Changes
			for n, audit := range test.audits {
				r, err := Judge(audit.reads[:])
				tells := each.Of(c.Take(audit.reads[:], r, err), briefly)
				slices.Sort(tells)
				slices.Sort(audit.tells)
				must.Equal(t, n+1, strings.Join(audit.tells, "\n"), strings.Join(tells, "\n"))
			}
			state, err := c.State()
			if test.err != "" {
				must.Fail(t, err, test.err)
				return
			}
			must.NoError(t, err)
			must.Equal(t, "findings", test.last, each.Of(found(state.Findings), func(f string) string { return "finding " + f }))
			must.Equal(t, "reads", 2*len(test.audits), state.Reads)
		})
	}
}

// Of findings with the same ID only the worst has an event. A change of its state is another event.
func TestChangesTellTheWorst(t *testing.T) {
	hint := detect.Finding{Detector: "snat", Kind: detect.HiddenSource, State: detect.Hint, Object: detect.Named("rule"), Owner: "node1"}
	active := hint
	active.State = detect.Active
	reads := []snapshot.Snapshot{cluster(false), cluster(false)}
	var c Changes
	for n, test := range []struct {
		found []detect.Finding
		tells string
	}{
		{[]detect.Finding{hint, active}, "finding active hidden-source rule"},
		{[]detect.Finding{active, active, hint}, ""},
		{[]detect.Finding{hint}, "finding hint hidden-source rule"},
	} {
		var r Result
		r.add(test.found, test.found)
		must.Equal(t, n+1, test.tells, strings.Join(each.Of(c.Take(reads, r, nil), briefly), ", "))
	}
}

// Each gap that came after the first audit is open.
func TestChangesLeaveOpenWhatIsLost(t *testing.T) {
	lost := cluster(false)
	lost.Routers = slices.Clone(lost.Routers)
	lost.Routers[0].Paths.Items, lost.Routers[0].Neighbors.Items = nil, nil
	for open, first := range map[bool]snapshot.Snapshot{true: cluster(false), false: lost} {
		var c Changes
		for _, s := range []snapshot.Snapshot{first, lost} {
			r, err := Judge([]snapshot.Snapshot{s, s})
			c.Take([]snapshot.Snapshot{s, s}, r, err)
		}
		must.Equal(t, "open", open, must.Get(c.State())(t).Open())
	}
}

// Repeated audits see a fault of a server and a router come and go.
func TestChangesOfACluster(t *testing.T) {
	s := incident(t, "10.5.114.0/24", "10.5.115.0/24")
	s.refused = []string{"/apis/apps/v1/deployments"}
	tor := frr(t, map[string]string{"10.5.112.0/24": "10.4.94.32", "10.5.114.0/24": "10.4.94.21"})
	right := frr(t, map[string]string{"10.5.114.0/24": "10.4.94.32", "10.5.115.0/24": "10.4.94.21"})
	var c Changes
	take := func() []Event {
		reads, r, err := audited(t, s, tor)
		return c.Take(reads, r, err)
	}
	came := take()
	must.Equal(t, came, 4, len(came))
	must.Contain(t, came[0].String()+"end",
		" + not read: workloads: listing Deployments: list on deployments in apps is not permitted: ", "("+RoleHint+")end")
	must.NoError(t, os.Rename(filepath.Join(filepath.Dir(right.Command[0]), "rib"), filepath.Join(filepath.Dir(tor.Command[0]), "rib")))
	gone := take()
	must.Equal(t, gone, [...]any{3, FindingGone}, [...]any{len(gone), gone[0].What})
	r := must.Get(c.State())(t)
	must.Equal(t, "findings, unread, nodes", [...]int{0, 1, 2}, [...]int{len(r.Findings), len(r.Unread), r.Nodes})
}
