package engine

import (
	"os"
	"path/filepath"
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

// A run that is killed at any moment leaves a report and a page with the results so far and the running step.
func TestAReportIsThereWhileTheRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		output := t.TempDir()
		looked := 0
		look := func() {
			runs := must.Get(page.Runs(output))(t)
			must.Equal(t, runs, 1, len(runs))
			r := must.Get(report.Read(filepath.Join(runs[0], "report.json")))(t)
			must.Equal(t, "steps under way", []string{"old: fault is injected"}, r.Unfinished.Steps)
			must.Equal(t, "verdict", string(framework.Inconclusive), r.Verdict)
			v := r.Variants[0]
			must.Equal(t, r.Variants, [...]any{1, true, ""}, [...]any{len(r.Variants), v.Baseline.Seconds > 0, v.Verdict})
			must.Contain(t, string(must.Read(t, filepath.Join(runs[0], page.Name))), "This run has not ended")
			must.Fail(t, must.Err(os.Lstat(report.Latest(output, s.Incident.Name))), "no such file") // it is not the latest
			looked++
		}
		s = scripted(s, func(made *framework.Script) {
			if len(made.Remedies) > 0 { // the affected variant's
				before(&made.Fault.Inject, look)
			}
		})
		e := New(s, &fakeLabs{world: w}, Options{Output: output, Command: func(s framework.Scenario) string { return "relapse run it, " + s.Incident.Name }})
		e.Run(t.Context(), UndoWithin)
		must.Equal(t, "polls", 1, looked)
		checkPublished(t, e)
	})
}

// checkPublished checks what the page needs of a run that has ended.
func checkPublished(t *testing.T, e *Execution) {
	t.Helper()
	r := must.Get(report.Read(filepath.Join(e.Dir(), "report.json")))(t)
	has := [...]bool{r.Unfinished != nil, r.Incident != nil, r.Topology != nil}
	must.Equal(t, "unfinished, incident, topology", [...]bool{false, true, true}, has)
	must.Equal(t, "command", "relapse run it, fake", r.Command)
	var steps, planned []string
	for _, s := range r.Steps {
		must.Equal(t, s, [...]any{false, ""}, [...]any{s.Ended.Before(s.Began), s.Failed})
		if s.Scope == "old" {
			steps = append(steps, s.Name)
		}
	}
	for _, s := range e.Steps() {
		if s.Scope == "old" && !strings.HasPrefix(s.Name, "verdict is") {
			planned = append(planned, s.Name)
		}
	}
	must.Equal(t, "steps", planned, steps)
	v := r.Variants[0]
	ordered := v.Began != nil && !v.Fault.Struck.Before(v.Fault.Began) && !v.Onset.Before(v.Fault.Began)
	must.Equal(t, v.Fault, true, ordered)
	for _, f := range v.Findings {
		if f.During == "fault" {
			must.Equal(t, f, *f.CameMS, f.At.Sub(v.Fault.Began).Milliseconds())
		}
	}
	last := v.Fault.Struck
	for _, m := range v.Remedies {
		must.Equal(t, m, false, m.Began.Before(last) || m.Applied.Before(*m.Began))
		last = *m.Applied
	}
	must.Equal(t, "there are ends", true, len(v.Ends) > 0)
	must.Equal(t, "to lose packets", v.ToBeHurt, v.ProbesHurt)
	seen := must.Get(history.Load(filepath.Join(e.Dir(), v.EvidenceDir)))(t).Presences()
	must.Equal(t, seen, [...]any{1, detect.Named("a")}, [...]any{len(seen), seen[0].Object})
	must.Equal(t, "gone and come again with the remedies", true, len(seen[0].Times) >= 2)
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
