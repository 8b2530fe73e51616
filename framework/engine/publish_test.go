package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run that is killed at any moment leaves a report and a page of what was known
// before, and says in which step it was.
func TestAReportIsThereWhileTheRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, output := newWorld(), t.TempDir()
		s := fakeScenario(w)
		looked := 0
		look := func() {
			runs, err := page.Runs(output)
			if err != nil || len(runs) != 1 {
				t.Fatalf("runs are %v, %v; want one", runs, err)
			}
			r := must.Get(report.Read(filepath.Join(runs[0], "report.json")))(t)
			if r.Unfinished == nil || !slices.Equal(r.Unfinished.Steps, []string{"old: fault is injected"}) || r.Verdict != string(framework.Inconclusive) {
				t.Errorf("in the fault it says %+v, verdict %s", r.Unfinished, r.Verdict)
			}
			if len(r.Variants) != 1 || r.Variants[0].Baseline.Seconds == 0 || r.Variants[0].Verdict != "" {
				t.Errorf("of the variants it knows %+v", r.Variants)
			}
			if text, err := os.ReadFile(filepath.Join(runs[0], page.Name)); err != nil || !strings.Contains(string(text), "This run has not ended") {
				t.Errorf("%v, or the page does not say that the run goes on", err)
			}
			if _, err := os.Lstat(report.Latest(output, s.Incident.Name)); err == nil {
				t.Error("a run that has not ended is the latest")
			}
			looked++
		}
		s = scripted(s, func(made *framework.Script) {
			if len(made.Remedies) > 0 { // the affected variant's
				inject := made.Fault.Inject
				made.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
					look()
					return inject(ctx, r)
				}
			}
		})
		e := New(s, &fakeLabs{world: w}, Options{Output: output, Command: func(s framework.Scenario) string { return "relapse run it, " + s.Incident.Name }})
		e.Run(t.Context(), UndoWithin)
		if looked == 0 {
			t.Fatal("there was no poll")
		}
		checkPublished(t, e)
	})
}

// checkPublished checks what the page needs of a run that has ended.
func checkPublished(t *testing.T, e *Execution) {
	t.Helper()
	r := must.Get(report.Read(filepath.Join(e.Dir(), "report.json")))(t)
	if r.Unfinished != nil || r.Incident == nil || r.Topology == nil || r.Command != "relapse run it, fake" {
		t.Errorf("at the end the report is of %+v, %+v, %+v, %q", r.Unfinished, r.Incident, r.Topology, r.Command)
	}
	var steps []string
	for _, s := range r.Steps {
		if s.Ended == nil || s.Ended.Before(s.Began) || s.Failed != "" {
			t.Errorf("step %+v", s)
		}
		if s.Scope == "old" {
			steps = append(steps, s.Name)
		}
	}
	var planned []string
	for _, s := range e.Steps() {
		if s.Scope == "old" && !strings.HasPrefix(s.Name, "verdict is") {
			planned = append(planned, s.Name)
		}
	}
	must.Equal(t, "steps", planned, steps)
	v := r.Variants[0]
	if v.Began == nil || v.Fault == nil || v.Fault.Struck.Before(v.Fault.Began) || v.Onset == nil || v.Onset.Before(v.Fault.Began) {
		t.Fatalf("began %v, fault %+v, onset %v", v.Began, v.Fault, v.Onset)
	}
	for _, f := range v.Findings {
		if f.During == "fault" && (f.At == nil || f.At.Sub(v.Fault.Began).Milliseconds() != *f.CameMS) {
			t.Errorf("finding %+v came at %v", f, f.At)
		}
	}
	last := v.Fault.Struck
	for _, m := range v.Remedies {
		if m.Began == nil || m.Applied == nil || m.Began.Before(last) || m.Applied.Before(*m.Began) {
			t.Errorf("remedy %q ran from %v to %v, after %v", m.Name, m.Began, m.Applied, last)
			continue
		}
		last = *m.Applied
	}
	if len(v.Ends) == 0 || !slices.Equal(v.ToBeHurt, v.ProbesHurt) {
		t.Errorf("ends %v, to lose packets %v", v.Ends, v.ToBeHurt)
	}
	h := must.Get(history.Load(filepath.Join(e.Dir(), v.EvidenceDir)))(t)
	if seen := h.Presences(); len(seen) != 1 || seen[0].Object != detect.Named("a") || len(seen[0].Times) < 2 {
		t.Errorf("seen were %+v, want the one finding, gone and come again with the remedies", seen)
	}
	must.Get(os.Stat(filepath.Join(e.Dir(), page.Name)))(t)
}

func TestWatchTellsWhenFindingsWereThere(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, d *said) {
		began := time.Now()
		pollTimes(2)
		d.says(found("lost", "a", detect.Active))
		pollTimes(3)
		d.says()
		pollTimes(2)
		d.says(found("lost", "a", detect.Active), found("lost", "a", detect.Pending))
		pollTimes(1)
		var got []string
		for _, s := range w.history.Presences() {
			for _, one := range s.Times {
				got = append(got, string(s.State)+" "+one.From.Sub(began).String()+" to "+one.Until.Sub(began).String())
			}
		}
		want := []string{"active 600ms to 1s", "active 1.6s to 1.6s", "settling 1.6s to 1.6s"}
		must.Equal(t, "seen", want, got)
	})
}
