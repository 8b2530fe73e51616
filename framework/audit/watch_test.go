package audit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
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

// What two reads have is told, what two reads lack is gone, and what was not read is neither.
func TestWatcherTakes(t *testing.T) {
	well, wrong := cluster(false), cluster(true)
	with := func(s snapshot.Snapshot, change func(*snapshot.Snapshot)) snapshot.Snapshot {
		s.Routers = slices.Clone(s.Routers)
		change(&s)
		return s
	}
	noFIB := func(s *snapshot.Snapshot) {
		s.Routers[0].Routes = snapshot.List[snapshot.Route]{Error: "no ip(8)"}
	}
	noPods := func(s *snapshot.Snapshot) { s.Pods = snapshot.List[snapshot.Pod]{Error: "no watch since then"} }
	noNodes := func(s *snapshot.Snapshot) { s.Nodes = snapshot.List[snapshot.Node]{Error: "gone"} }
	const (
		settling = "finding settling unannounced 10.5.115.0/24"
		active   = "finding active unannounced 10.5.115.0/24"
		latent   = "finding latent absent-node 10.5.113.0/24"
		noActive = "gone active unannounced 10.5.115.0/24"
		noLatent = "gone latent absent-node 10.5.113.0/24"
	)
	type read struct {
		at      int // second
		is      snapshot.Snapshot
		tells   []string
		settled bool
	}
	for _, test := range []struct {
		name  string
		reads []read
		last  []string // findings of the result
		err   string
	}{
		{"well", []read{{0, well, nil, false}, {3, well, nil, true}, {13, well, nil, true}}, []string{}, ""},
		{"wrong from the beginning", []read{{0, wrong, nil, false}, {3, wrong, []string{latent, active}, true}}, []string{active, latent}, ""},
		{"it begins, and ends", []read{
			{0, well, nil, false}, {3, well, nil, true},
			{13, wrong, nil, false}, {16, wrong, []string{latent, settling}, false}, {19, wrong, []string{active}, true},
			{29, well, nil, false}, {32, well, []string{noLatent, noActive}, true},
		}, []string{}, ""},
		{"half of a change", []read{{0, well, nil, false}, {3, well, nil, true}, {13, wrong, nil, false}, {16, well, nil, true}}, []string{}, ""},
		{"one read lacks it", []read{
			{0, wrong, nil, false}, {3, wrong, []string{latent, active}, true}, {13, well, nil, false}, {16, wrong, nil, false}, {19, wrong, nil, false}, {22, wrong, nil, true},
		}, []string{active, latent}, ""},
		{"a source is lost, and what it showed stays", []read{
			{0, wrong, nil, false}, {3, wrong, []string{latent, active}, true},
			{13, with(well, noPods), []string{"unread Pods"}, true}, {16, with(well, noPods), nil, true},
			{26, well, []string{"read Pods"}, false}, {29, well, []string{noLatent, noActive}, true},
		}, []string{}, ""},
		{"what was not read before either can go", []read{
			{0, with(wrong, noPods), []string{"unread Pods"}, false}, {3, with(wrong, noPods), []string{latent, active}, true},
			{13, with(well, noPods), nil, false}, {16, with(well, noPods), []string{noLatent, noActive}, true},
		}, []string{}, ""},
		{"a router is not judged for a time", []read{
			{0, well, nil, false}, {3, well, nil, true},
			{13, with(well, noFIB), []string{"unread FIB of tor1"}, false}, {16, with(well, noFIB), []string{"not-judged"}, true},
			{26, well, []string{"read FIB of tor1", "judged"}, true},
		}, []string{}, ""},
		{"no Nodes for a time", []read{
			{0, wrong, nil, false}, {3, wrong, []string{latent, active}, true},
			{13, with(well, noNodes), []string{"unread Nodes"}, true}, {23, wrong, []string{"read Nodes"}, true},
		}, []string{active, latent}, ""},
		{"no Nodes at the end", []read{{0, well, nil, false}, {3, well, nil, true}, {13, with(well, noNodes), []string{"unread Nodes"}, true}}, nil, "the cluster cannot be read: gone"},
		{"interrupted at once", []read{{0, well, nil, false}}, nil, "interrupted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var w Watcher
			for _, r := range test.reads {
				r.is.Time = r.is.Time.Add(time.Duration(r.at) * time.Second)
				var tells []string
				for _, e := range w.take(r.is) {
					tells = append(tells, briefly(e))
				}
				slices.Sort(tells)
				slices.Sort(r.tells)
				if diff := cmp.Diff(r.tells, tells); diff != "" || w.settled != r.settled {
					t.Errorf("second %d: settled %t; (-want +got):\n%s", r.at, w.settled, diff)
				}
			}
			result, err := w.result(errors.New("interrupted"))
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("error %v, want %s", err, test.err)
				}
				return
			}
			var last []string
			for _, f := range found(result.Findings) {
				last = append(last, "finding "+f)
			}
			if diff := cmp.Diff(strings.Join(test.last, "\n"), strings.Join(last, "\n")); diff != "" || err != nil || result.Reads != len(test.reads) {
				t.Errorf("%d reads, error %v; (-want +got):\n%s", result.Reads, err, diff)
			}
		})
	}
}

// Of several findings with one ID the worst is told, whichever comes last.
func TestWatcherTellsTheWorst(t *testing.T) {
	hint := detect.Finding{Detector: "snat", Kind: detect.HiddenSource, State: detect.Hint, Object: detect.Named("rule"), Owner: "node1"}
	active := hint
	active.State = detect.Active
	for _, found := range [][]detect.Finding{{hint, active}, {active, hint}, {active, active, hint}} {
		w := Watcher{told: map[string]*holding{}, found: found}
		var tells []string
		for _, e := range w.findings(cluster(false), found) {
			tells = append(tells, briefly(e))
		}
		if got := strings.Join(tells, ", "); got != "finding active hidden-source rule" || w.told[id(hint)].State != detect.Active {
			t.Errorf("%v: told %s, kept %+v", found, got, w.told[id(hint)].Finding)
		}
	}
}

// What came since the first read is open, whatever the reason.
func TestWatcherLeavesOpenWhatIsLost(t *testing.T) {
	lost := cluster(false)
	lost.Routers = slices.Clone(lost.Routers)
	lost.Routers[0].Paths.Items, lost.Routers[0].Neighbors.Items = nil, nil
	for open, first := range map[bool]snapshot.Snapshot{true: cluster(false), false: lost} {
		var w Watcher
		for n, s := range []snapshot.Snapshot{first, lost, lost} {
			s.Time = s.Time.Add(time.Duration(n) * 3 * time.Second)
			w.take(s)
		}
		if r, err := w.result(nil); err != nil || r.Open() != open {
			t.Errorf("%+v, %v, want open %t", r, err, open)
		}
	}
}

// One look at a source that was not read before is not enough for quiet.
func TestWatcherLeavesOpenWhatWasReadOnce(t *testing.T) {
	unread := cluster(false)
	unread.Routers = slices.Clone(unread.Routers)
	unread.Routers[0].Paths = snapshot.List[snapshot.Path]{Error: "refused"}
	for open, reads := range map[bool][]snapshot.Snapshot{true: {unread, cluster(false)}, false: {unread, cluster(false), cluster(false)}} {
		var w Watcher
		for n, s := range reads {
			s.Time = s.Time.Add(time.Duration(n) * 3 * time.Second)
			w.take(s)
		}
		if r, err := w.result(nil); err != nil || r.Open() != open {
			t.Errorf("%d reads: %q, %v, want open %t", len(reads), r.Unread, err, open)
		}
	}
}

// What has not changed is judged every five minutes, and its routers are kept once.
func TestWatcherRests(t *testing.T) {
	var w Watcher
	s := cluster(false)
	began := s.Time
	for second := 0; second <= 340; second += 10 {
		s := s
		s.Routers = slices.Clone(s.Routers) // read anew
		s.Time = began.Add(time.Duration(second) * time.Second)
		w.take(s)
		if want := began.Add(map[bool]time.Duration{true: 10 * time.Second, false: 310 * time.Second}[second < 310]); second > 0 && !w.judged.Equal(want) {
			t.Errorf("second %d: judged last at %s, want %s", second, w.judged, want)
		}
	}
	if n := len(w.history); n != 4 || &w.history[0].Routers[0] != &w.history[n-1].Routers[0] {
		t.Errorf("%d reads kept, want 30 s of them with one answer of the routers", n)
	}
}

// A watch lists once, finds what a one-shot audit finds, and sees it go.
func TestWatcherRuns(t *testing.T) {
	s := incident(t, "10.5.114.0/24", "10.5.115.0/24")
	s.refused = []string{"/apis/apps/v1/deployments"}
	tor := frr(t, map[string]string{"10.5.112.0/24": "10.4.94.32", "10.5.114.0/24": "10.4.94.21"})
	right := frr(t, map[string]string{"10.5.114.0/24": "10.4.94.32", "10.5.115.0/24": "10.4.94.21"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var tells []string
	has := map[string]bool{}
	w := Watcher{Interval: 50 * time.Millisecond, Between: 20 * time.Millisecond, Tell: func(e Event) error {
		tells = append(tells, e.String())
		switch text := briefly(e); {
		case e.What == FindingCame && e.Finding.State != detect.Pending:
			if has[e.Finding.ID] = true; len(has) == 3 {
				return os.Rename(filepath.Join(filepath.Dir(right.Command[0]), "rib"), filepath.Join(filepath.Dir(tor.Command[0]), "rib"))
			}
		case e.What == FindingGone:
			if delete(has, e.Finding.ID); len(has) == 0 {
				cancel()
			}
		case text != "unread workloads" && e.What != FindingCame:
			t.Errorf("it tells: %s", e)
		}
		return nil
	}}
	readers, err := bgprouter.Readers([]bgprouter.Declared{tor}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.Run(ctx, Access{Config: s.config(t), Routing: readers})
	if err != nil || len(r.Findings) != 0 || len(r.Unread) != 1 || r.Nodes != 2 {
		t.Errorf("%+v, error %v\n%s", r, err, strings.Join(tells, "\n"))
	}
	for asked, times := range s.asked {
		method, at, _ := strings.Cut(asked, " ")
		if _, there := s.lists[at]; method != http.MethodGet || there && times > 1 && !slices.Contains(s.refused, at) {
			t.Errorf("%s was asked for %d times", asked, times)
		}
	}
	if s.watches["/api/v1/nodes"] != 1 {
		t.Errorf("Nodes were watched %d times", s.watches["/api/v1/nodes"])
	}
	if !strings.Contains(tells[0], " + not read: workloads: listing Deployments: list on deployments in apps is not permitted: ") || !strings.HasSuffix(tells[0], "("+RoleHint+")") {
		t.Errorf("first it tells: %s", tells[0])
	}
}

// A cluster that cannot be read at first ends the watch, and so does a reader that is gone.
func TestWatcherEnds(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	s.refused = []string{"/api/v1/nodes"}
	var unreadable *UnreadableError
	w := Watcher{Interval: time.Second, Between: time.Second, Tell: func(Event) error { return nil }}
	if _, err := w.Run(t.Context(), Access{Config: s.config(t)}); !errors.As(err, &unreadable) || !strings.Contains(err.Error(), RoleHint) {
		t.Errorf("error %v", err)
	}
	s.refused = []string{"/api/v1/pods"}
	gone := errors.New("broken pipe")
	w = Watcher{Interval: time.Second, Between: time.Second, Tell: func(Event) error { return gone }}
	if _, err := w.Run(t.Context(), Access{Config: s.config(t)}); !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
}

// Requests, bytes and memory are counted, by resource.
func TestCost(t *testing.T) {
	s := incident(t, "10.5.112.0/24", "10.5.114.0/24")
	config := s.config(t)
	m := Measure(config)
	if _, err := Read(t.Context(), Access{Config: config}, time.Millisecond, func(string) {}); err != nil {
		t.Fatal(err)
	}
	c := m.Cost()
	asked, bytes := 0, int64(0)
	for _, n := range s.asked {
		asked += n
	}
	for _, l := range c.Lists {
		bytes += l.Bytes
		if strings.Contains(l.Resource, "/") || l.Requests < 2 {
			t.Errorf("%+v", l)
		}
	}
	if c.Requests != asked || c.Bytes != bytes || bytes < int64(2*len(s.lists["/api/v1/nodes"])) || c.PeakMemory < 1<<20 {
		t.Errorf("%+v, want %d requests", c, asked)
	}
}
