package display

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
)

// storeShortRun stores a run of the short plan in a folder of reports, whose steps took so
// long each.
func storeShortRun(t *testing.T, output, run string, took time.Duration, change func(*report.Report)) {
	t.Helper()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := report.Report{
		Schema: report.Schema, Scenario: "drain", Run: run, Verdict: "pass", Started: began,
		Machine: map[string]any{"cpus": 2, "memory_gib": 24, "kernel": "6.1"}, Variants: []report.Variant{},
	}
	for i, s := range shortRun() {
		if s.Name == "verdict is reproduced" { // no step of a report
			continue
		}
		step := report.Step{Scope: s.Scope, Name: s.Name, Began: began.Add(time.Duration(i) * took)}
		if s.ID != (framework.StepID{}) {
			step.ID = s.ID.String()
		}
		step.Ended = new(step.Began.Add(took))
		r.Steps = append(r.Steps, step)
	}
	if change != nil {
		change(&r)
	}
	if err := r.Write(filepath.Join(output, "drain", run)); err != nil {
		t.Fatal(err)
	}
}

func TestEarlierRuns(t *testing.T) {
	output := t.TempDir()
	machine := struct {
		CPUs   int    `json:"cpus"`
		Memory int    `json:"memory_gib"`
		Kernel string `json:"kernel"`
	}{2, 24, "6.1"}
	find := EarlierIn(output, machine)
	if got := find("drain", shortRun()); len(got) > 0 {
		t.Errorf("%d runs, want none", len(got))
	}
	storeShortRun(t, output, "2026-01-01T00-00-00Z", time.Hour, nil) // too old
	for i, took := range []time.Duration{10, 30, 20} {
		storeShortRun(t, output, "2026-01-02T00-00-0"+string(rune('0'+i))+"Z", took*time.Second, func(r *report.Report) {
			for n := range r.Steps {
				if i == 0 { // a report of an older version
					r.Steps[n].ID = ""
				} else if r.Steps[n].ID != "" {
					r.Steps[n].Name += ", in other words"
				}
			}
		})
	}
	for run, change := range map[string]func(*report.Report){
		"2026-01-03T00-00-00Z": func(r *report.Report) { r.Machine = map[string]any{"cpus": 64} },
		"2026-01-03T00-00-01Z": func(r *report.Report) { r.Unfinished = &report.Unfinished{} },
		"2026-01-03T00-00-02Z": func(r *report.Report) { r.Verdict = "inconclusive" },
		"2026-01-03T00-00-03Z": func(r *report.Report) { r.Steps[2].Scope = "another variant" },
	} {
		storeShortRun(t, output, run, time.Hour, change)
	}
	found := find("drain", shortRun())
	if len(found) != 3 {
		t.Fatalf("%d runs, want the three newest of this kind", len(found))
	}

	at := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	b := &board{scenario: "drain", earlier: found}
	b.plan(shortRun())
	left := func(after time.Duration, want string) {
		t.Helper()
		if got, known := b.left(at.Add(after)); got != want || known != (want != "") {
			t.Errorf("after %s: %q, want %q", after, got, want)
		}
	}
	left(0, "about 2m0s left") // 6 steps of 20 s each, one of which is no step of a report
	ends, _ := b.begin("lab", "images are there", at)
	left(5*time.Second, "about 1m55s left")
	left(time.Minute, "about 1m40s left") // longer than it took: all else is to come
	ends(nil, at.Add(time.Minute))
	left(time.Minute, "about 1m40s left")
	b.begin("old", "fault", at.Add(time.Minute)) // a step was skipped
	left(time.Minute, "about 1m0s left")
	b.earlier = nil
	left(time.Minute, "")
	if got := find("drain", []engine.Step{{Scope: "lab", Name: "lab is up"}}); len(got) > 0 {
		t.Errorf("%d runs of other variants", len(got))
	}
}
