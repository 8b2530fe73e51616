// Package soak says what became of a scenario that ran again and again: its verdicts,
// its times, and what has grown meanwhile. It runs nothing.
package soak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
)

// Schema names the format of soak.json.
const Schema = "relapse.soak/v1"

// Run is one of the runs: a line of runs.jsonl.
type Run struct {
	Number int `json:"run"` // from 1
	// Lab is the number of the lab that it had, and OnLab that of the run on it, both
	// from 1.
	Lab     int       `json:"lab"`
	OnLab   int       `json:"on_lab"`
	Began   time.Time `json:"began"`
	Verdict string    `json:"verdict"` // pass, fail or inconclusive
	// Why says why the verdict is no pass.
	Why []string `json:"why,omitempty"`
	// Report is that of a run that was kept, relative to the soak's folder.
	Report string `json:"report,omitempty"`
	// LabMS is how long its lab took to come up; absent where it was there.
	LabMS    *int64    `json:"lab_ms,omitempty"`
	TotalMS  int64     `json:"total_ms"`
	Variants []Variant `json:"variants"`
	// Kept is set where the lab was there when things were counted, after the run, and
	// not taken down.
	Kept bool `json:"kept,omitempty"`
	// Counts are what there was, by the names of Quantities. NotCounted says why there
	// are none.
	Counts     map[string]int64 `json:"counts,omitempty"`
	NotCounted string           `json:"not_counted,omitempty"`
	// Left is what of the lab was there although it had been taken down.
	Left []string `json:"left,omitempty"`
}

// Variant is what became of one variant in one run.
type Variant struct {
	Name     string `json:"name"`
	Expected string `json:"expected"`
	Verdict  string `json:"verdict"`
	TotalMS  int64  `json:"total_ms"`
	// DetectMS runs from the first lost probe to the first finding that came after it;
	// absent where none did.
	DetectMS *int64 `json:"detect_ms,omitempty"`
	// RecoverMS runs from the start of a remedy to the first clean window, by remedy.
	RecoverMS map[string]int64 `json:"recover_ms,omitempty"`
}

// Result is what the runs came to.
type Result struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	// Command does the same again.
	Command string    `json:"command"`
	Began   time.Time `json:"began"`
	TookMS  int64     `json:"took_ms"`
	// Stopped says why it ended before its time; empty where it did not.
	Stopped  string               `json:"stopped,omitempty"`
	Verdict  framework.RunVerdict `json:"verdict"` // pass, fail or inconclusive
	Runs     int                  `json:"runs"`
	Labs     int                  `json:"labs"`
	Verdicts []Count              `json:"verdicts"`
	// Others are the runs that did not pass.
	Others []Other  `json:"others,omitempty"`
	Times  []Times  `json:"times"`
	Growth []Growth `json:"growth"`
	// Left is what was there of a lab that had been taken down.
	Left []string `json:"left,omitempty"`
	// Before and After count what was on the machine before the first run and after the
	// last lab was down, whoever had made it.
	Before map[string]int64 `json:"before,omitempty"`
	After  map[string]int64 `json:"after,omitempty"`
}

// Count is how often a variant came to a verdict.
type Count struct {
	Variant  string `json:"variant"`
	Expected string `json:"expected"`
	Verdict  string `json:"verdict"`
	Runs     int    `json:"runs"`
}

// Other is a run that did not pass.
type Other struct {
	Run     int      `json:"run"`
	Lab     int      `json:"lab"`
	Verdict string   `json:"verdict"`
	Why     []string `json:"why"`
	// Report is its page, relative to the soak's folder; empty where there is none.
	Report string `json:"report,omitempty"`
}

// Times are those of all runs in which something was measured.
type Times struct {
	What     string `json:"what"`
	Runs     int    `json:"runs"`
	MinMS    int64  `json:"min_ms"`
	MedianMS int64  `json:"median_ms"`
	MaxMS    int64  `json:"max_ms"`
}

// Growth is what became of one quantity from run to run.
type Growth struct {
	What string `json:"what"` // its name in Quantities
	// Runs are those that were compared (Scope). Of several labs it is the one with the
	// most runs, or the first one on which the quantity grows.
	Runs  int   `json:"runs"`
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Min   int64 `json:"min"`
	Max   int64 `json:"max"`
	// PerRun is the median of the slopes between any two runs of the last half
	// (Theil-Sen). Steadily tells whether it grows, and is absent where there are too
	// few runs to tell.
	PerRun   float64 `json:"per_run"`
	Steadily *bool   `json:"steadily,omitempty"`
}

// Header is what is known of a soak beside its runs.
type Header struct {
	Scenario, Command string
	Began             time.Time
	Took              time.Duration
	Stopped           string
	// Left is what is there of the last lab although that was taken down.
	Left []string
	// Before and After are the counts of the machine.
	Before, After map[string]int64
}

// Sum says what runs came to.
func Sum(h Header, runs []Run) Result {
	r := Result{
		Schema: Schema, Scenario: h.Scenario, Command: h.Command, Began: h.Began, TookMS: h.Took.Milliseconds(), Stopped: h.Stopped,
		Runs: len(runs), Verdicts: []Count{}, Times: timesOf(runs), Growth: growthOf(runs), Left: slices.Clone(h.Left),
		Before: h.Before, After: h.After,
	}
	verdicts := []framework.RunVerdict{}
	for _, run := range runs {
		r.Labs = max(r.Labs, run.Lab)
		verdicts = append(verdicts, framework.RunVerdict(run.Verdict))
		if run.Verdict != string(framework.Pass) {
			r.Others = append(r.Others, Other{run.Number, run.Lab, run.Verdict, run.Why, run.Report})
		}
		for _, what := range run.Left {
			r.Left = append(r.Left, fmt.Sprintf("after run %d: %s", run.Number, what))
		}
		for _, v := range run.Variants {
			i := slices.IndexFunc(r.Verdicts, func(c Count) bool { return c.Variant == v.Name && c.Verdict == v.Verdict })
			if i < 0 {
				i = len(r.Verdicts)
				r.Verdicts = append(r.Verdicts, Count{Variant: v.Name, Expected: v.Expected, Verdict: v.Verdict})
			}
			r.Verdicts[i].Runs++
		}
	}
	slices.SortStableFunc(r.Verdicts, func(a, b Count) int { return cmp.Compare(a.Variant, b.Variant) })
	if len(runs) < Enough || h.Stopped != "" {
		verdicts = append(verdicts, framework.Inconclusive)
	}
	if len(r.Left) > 0 || len(r.grown()) > 0 {
		verdicts = append(verdicts, framework.Fail)
	}
	r.Verdict = framework.Worst(verdicts...)
	return r
}

// grown are the quantities that grow steadily.
func (r Result) grown() []Growth {
	return slices.DeleteFunc(slices.Clone(r.Growth), func(g Growth) bool { return g.Steadily == nil || !*g.Steadily })
}

// timesOf are the times of runs: those of labs first, then of each variant.
func timesOf(runs []Run) []Times {
	var order []string
	of := map[string][]int64{}
	note := func(what string, ms int64) {
		if of[what] == nil {
			order = append(order, what)
		}
		of[what] = append(of[what], ms)
	}
	for _, run := range runs {
		note("the whole run", run.TotalMS)
		for _, v := range run.Variants {
			note(v.Name+": in all", v.TotalMS)
			if v.DetectMS != nil {
				note(v.Name+": to detect", *v.DetectMS)
			}
			for _, remedy := range slices.Sorted(maps.Keys(v.RecoverMS)) {
				note(v.Name+": to recover by "+remedy, v.RecoverMS[remedy])
			}
		}
	}
	for _, run := range runs {
		if run.LabMS != nil {
			note("a new lab", *run.LabMS)
		}
	}
	all := []Times{}
	for _, what := range order {
		ms := slices.Sorted(slices.Values(of[what]))
		all = append(all, Times{What: what, Runs: len(ms), MinMS: ms[0], MedianMS: ms[len(ms)/2], MaxMS: ms[len(ms)-1]})
	}
	return all
}
