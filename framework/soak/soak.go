// Package soak runs a scenario repeatedly, and finds in the stored runs which verdicts
// they had, how long they took, and which quantities grew from run to run.
package soak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
)

// Schema names the format of soak.json.
const Schema = "relapse.soak/v1"

// Run is one of the runs: a line of runs.jsonl.
type Run struct {
	Number int `json:"run"` // from 1
	// Lab is the number of its lab, and OnLab the run's number on that lab, both from 1.
	Lab     int       `json:"lab"`
	OnLab   int       `json:"on_lab"`
	Began   time.Time `json:"began"`
	Verdict string    `json:"verdict"` // pass, fail or inconclusive
	// Why are the reasons for a verdict other than pass.
	Why []string `json:"why,omitempty"`
	// Report is relative to the soak's folder; empty if it was removed.
	Report string `json:"report,omitempty"`
	// LabMS is how long its lab took to come up; absent if it was up already.
	LabMS    *int64    `json:"lab_ms,omitempty"`
	TotalMS  int64     `json:"total_ms"`
	Variants []Variant `json:"variants"`
	// Kept is set if the lab was still up when resources were counted, after the run.
	Kept bool `json:"kept,omitempty"`
	// Counts are by the names of Quantities. NotCounted says why they are absent.
	Counts     map[string]int64 `json:"counts,omitempty"`
	NotCounted string           `json:"not_counted,omitempty"`
	// Left are parts of the lab that existed after it was taken down.
	Left []string `json:"left,omitempty"`
}

// Variant is the result of one variant in one run.
type Variant struct {
	Name     string `json:"name"`
	Expected string `json:"expected"`
	Verdict  string `json:"verdict"`
	TotalMS  int64  `json:"total_ms"`
	// DetectMS is the time from the first lost packet to the next finding; absent if
	// there was none.
	DetectMS *int64 `json:"detect_ms,omitempty"`
	// RecoverMS is the time from the start of a remedy to the first clean window, by
	// remedy.
	RecoverMS map[string]int64 `json:"recover_ms,omitempty"`
}

// Result is the result of all runs.
type Result struct {
	Schema   string `json:"schema"`
	Scenario string `json:"scenario"`
	// Command repeats the soak.
	Command string    `json:"command"`
	Began   time.Time `json:"began"`
	TookMS  int64     `json:"took_ms"`
	// Stopped says why it ended early; empty if it did not.
	Stopped  string               `json:"stopped,omitempty"`
	Verdict  framework.RunVerdict `json:"verdict"` // pass, fail or inconclusive
	Runs     int                  `json:"runs"`
	Labs     int                  `json:"labs"`
	Verdicts []Count              `json:"verdicts"`
	// Others are the runs that did not pass.
	Others []Other  `json:"others,omitempty"`
	Times  []Times  `json:"times"`
	Growth []Growth `json:"growth"`
	// Left are parts of a lab that existed after it was taken down.
	Left []string `json:"left,omitempty"`
	// Before and After are the counts of the machine before the first run and after the
	// last lab was down.
	Before map[string]int64 `json:"before,omitempty"`
	After  map[string]int64 `json:"after,omitempty"`
}

// Count is how often a variant had a verdict.
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
	// Report is its page, relative to the soak's folder; empty if there is none.
	Report string `json:"report,omitempty"`
}

// Times are the times of one measurement over all runs that have it.
type Times struct {
	What     string `json:"what"`
	Runs     int    `json:"runs"`
	MinMS    int64  `json:"min_ms"`
	MedianMS int64  `json:"median_ms"`
	MaxMS    int64  `json:"max_ms"`
}

// Growth is how one quantity changed from run to run.
type Growth struct {
	What string `json:"what"` // its name in Quantities
	// Runs is how many runs were compared (Scope). Of several labs these are the runs of
	// the first one on which the quantity grows, or else of the one with the most runs.
	Runs  int   `json:"runs"`
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Min   int64 `json:"min"`
	Max   int64 `json:"max"`
	// PerRun is the median of the slopes between any two runs of the last half
	// (Theil-Sen). Steadily says whether the quantity grows; absent if there are too few
	// runs.
	PerRun   float64 `json:"per_run"`
	Steadily *bool   `json:"steadily,omitempty"`
}

// Header is what is known of a soak besides its runs.
type Header struct {
	Scenario, Command string
	Began             time.Time
	Took              time.Duration
	Stopped           string
	// Left are parts of the last lab that exist after it was taken down.
	Left []string
	// Before and After are the counts of the machine.
	Before, After map[string]int64
}

// Sum is the result of runs.
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
	if !r.compared() || h.Stopped != "" {
		verdicts = append(verdicts, framework.Inconclusive)
	}
	if len(r.Left) > 0 || len(r.grown()) > 0 {
		verdicts = append(verdicts, framework.Fail)
	}
	r.Verdict = framework.Worst(verdicts...)
	return r
}

// compared reports whether it is known of each kind of quantity, such as those of the lab,
// whether one grows. It is not known after too few runs, on one lab for the lab's, or if
// counting failed after most of them.
func (r Result) compared() bool {
	known := map[string]bool{}
	for _, g := range r.Growth {
		kind, _, _ := strings.Cut(g.What, ":")
		known[kind] = known[kind] || g.Steadily != nil
	}
	return len(known) > 0 && !slices.Contains(slices.Collect(maps.Values(known)), false)
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
