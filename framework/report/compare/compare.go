// Package compare says in what two reports of a scenario differ: verdicts, findings,
// and times as far as they differ by more than earlier runs did among themselves.
package compare

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
)

// Difference is something that two reports say differently. A side that says
// nothing is empty.
type Difference struct {
	Variant string // with the part that was switched off; empty: of the whole run
	What    string
	A, B    string
}

// Time is a time that both reports have, and that differs.
type Time struct {
	Variant, What string
	A, B          time.Duration
	// Earlier are those of earlier runs, shortest first.
	Earlier []time.Duration
}

// EnoughRuns is how many earlier runs it takes to say how much a time varies.
const EnoughRuns = 3

// Noise is by how much earlier runs differ among themselves; known is whether there
// are enough of them to tell.
func (t Time) Noise() (noise time.Duration, known bool) {
	if len(t.Earlier) < EnoughRuns {
		return 0, false
	}
	return t.Earlier[len(t.Earlier)-1] - t.Earlier[0], true
}

// Result is in what two reports differ.
type Result struct {
	A, B report.Report
	// Verdicts are those of the run, of variants, of remedies and of checks, for all
	// that both have judged.
	Verdicts []Difference
	// Findings are there in one of them only. Those that were given time to pass by
	// themselves come and go with the moment of a look, and are left out.
	Findings []Difference
	// Beyond are times that differ by more than the noise, Within by less, and
	// Unknown those of which too few earlier runs are there.
	Beyond, Within, Unknown []Time
	// Conditions are what the runs had not in common, variants among that.
	Conditions []Difference
	// Earlier is how many earlier runs the noise was taken from.
	Earlier int
}

// Reports compares two reports of one scenario. Of the earlier ones those count
// that have ended, and that other work on the machine has not slowed down.
func Reports(a, b report.Report, earlier []report.Report) (Result, error) {
	r := Result{A: a, B: b}
	if a.Scenario != b.Scenario {
		return r, fmt.Errorf("the one is of %s, the other of %s", a.Scenario, b.Scenario)
	}
	earlier = slices.DeleteFunc(slices.Clone(earlier), func(e report.Report) bool {
		return e.Scenario != a.Scenario || e.Unfinished != nil || e.CPU.Slowed() || !SameMachine(e, b)
	})
	r.Earlier = len(earlier)
	r.conditions()
	r.verdict("", "run", a.Verdict, b.Verdict)
	common := 0
	for _, one := range a.Variants {
		title := one.Title()
		other, both := find(b, title)
		if !both {
			r.Conditions = append(r.Conditions, Difference{title, "variant", "ran: " + one.Verdict, ""})
			continue
		}
		common++
		r.variants(title, one, other)
		r.times(title, one, other, earlier)
	}
	for _, other := range b.Variants {
		if _, both := find(a, other.Title()); !both {
			r.Conditions = append(r.Conditions, Difference{other.Title(), "variant", "", "ran: " + other.Verdict})
		}
	}
	if common == 0 {
		return r, fmt.Errorf("no variant of %s has run in both", a.Scenario)
	}
	return r, nil
}

func find(r report.Report, title string) (report.Variant, bool) {
	i := slices.IndexFunc(r.Variants, func(v report.Variant) bool { return v.Title() == title })
	if i < 0 {
		return report.Variant{}, false
	}
	return r.Variants[i], true
}

// SameMachine tells whether two runs were on machines with the same CPUs, memory and kernel.
func SameMachine(a, b report.Report) bool { return reflect.DeepEqual(machineOf(a), machineOf(b)) }

// machineOf is what of a machine has a part in how long things take.
func machineOf(r report.Report) map[string]string {
	of := map[string]string{}
	if facts, known := r.Machine.(map[string]any); known {
		for _, name := range []string{"cpus", "memory_gib", "kernel"} {
			of[name] = fmt.Sprint(facts[name])
		}
	}
	if len(r.Guests) > 0 {
		of["accelerator"] = r.Guests[0].Accelerator
	}
	return of
}

func (r *Result) conditions() {
	tell := func(what, a, b string) {
		if a != b {
			r.Conditions = append(r.Conditions, Difference{What: what, A: a, B: b})
		}
	}
	a, b := machineOf(r.A), machineOf(r.B)
	for _, name := range []string{"cpus", "memory_gib", "kernel", "accelerator"} {
		tell(name, a[name], b[name])
	}
	tell("relapse", r.A.Relapse, r.B.Relapse)
	for _, ref := range names(r.A.Images, r.B.Images) {
		tell("image "+ref, r.A.Images[ref], r.B.Images[ref])
	}
	tell("command", r.A.Command, r.B.Command)
	tell("not finished", unfinished(r.A), unfinished(r.B))
	tell("slowed down by other work", yes(r.A.CPU.Slowed()), yes(r.B.CPU.Slowed()))
}

func unfinished(r report.Report) string {
	if r.Unfinished == nil {
		return ""
	}
	return "it was at: " + strings.Join(r.Unfinished.Steps, ", ")
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}

func (r *Result) verdict(variant, what, a, b string) {
	if a != b {
		r.Verdicts = append(r.Verdicts, Difference{variant, what, a, b})
	}
}

// variants compares what came of a variant, but for its times.
func (r *Result) variants(title string, a, b report.Variant) {
	for _, name := range names(a.Components, b.Components) {
		if a.Components[name] != b.Components[name] {
			r.Conditions = append(r.Conditions, Difference{title, name, a.Components[name], b.Components[name]})
		}
	}
	r.verdict(title, "verdict", a.Verdict, b.Verdict)
	for _, m := range a.Remedies {
		i := slices.IndexFunc(b.Remedies, func(n report.Remedy) bool { return n.Same(m) })
		if i >= 0 {
			r.verdict(title, "remedy: "+m.Name, m.Verdict, b.Remedies[i].Verdict)
		}
	}
	for _, c := range a.Checks {
		i := slices.IndexFunc(b.Checks, func(d report.Check) bool { return d.Same(c) })
		if i >= 0 {
			r.verdict(title, "check: "+c.Name, holds(c), holds(b.Checks[i]))
		}
	}
	inA, inB := findings(a), findings(b)
	for _, f := range inA {
		if !slices.Contains(inB, f) {
			r.Findings = append(r.Findings, Difference{Variant: title, What: f.text(), A: "found"})
		}
	}
	for _, f := range inB {
		if !slices.Contains(inA, f) {
			r.Findings = append(r.Findings, Difference{Variant: title, What: f.text(), B: "found"})
		}
	}
}

func holds(c report.Check) string {
	switch {
	case c.Holds:
		return "holds"
	case c.Unknown:
		return "not known"
	}
	return "does not hold"
}

// finding identifies a finding across runs.
type finding struct {
	detect.ID
	during string
}

func (f finding) text() string { return f.String() + " (" + f.during + ")" }

func findings(v report.Variant) []finding {
	var all []finding
	for _, f := range v.Findings {
		key := finding{f.ID(), f.During}
		if f.State != detect.Settling && !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// times compares the times of a variant, and of the lab for the first of them.
func (r *Result) times(title string, a, b report.Variant, earlier []report.Report) {
	before := map[string][]time.Duration{}
	for _, e := range earlier {
		v, there := find(e, title)
		if !there || v.Verdict != a.Verdict && v.Verdict != b.Verdict {
			continue // what else came of it took other times
		}
		for what, took := range timesOf(v) {
			before[what] = append(before[what], took)
		}
	}
	inA, inB := timesOf(a), timesOf(b)
	for _, what := range names(inA, inB) {
		one, is := inA[what]
		other, too := inB[what]
		if !is || !too || one == other {
			continue
		}
		t := Time{Variant: title, What: what, A: one, B: other, Earlier: slices.Sorted(slices.Values(before[what]))}
		switch noise, known := t.Noise(); {
		case !known:
			r.Unknown = append(r.Unknown, t)
		case (one - other).Abs() > noise:
			r.Beyond = append(r.Beyond, t)
		default:
			r.Within = append(r.Within, t)
		}
	}
}

// timesOf are the times of a variant by what they are. Of one that ran several
// times they are those of the run that stands for all.
func timesOf(v report.Variant) map[string]time.Duration {
	times := map[string]time.Duration{}
	if v.Repeats == nil && v.ElapsedMS > 0 {
		times["from installation to verdict"] = ms(v.ElapsedMS)
	}
	if v.Onset != nil && v.Fault != nil {
		times["from the fault to the first lost packet"] = v.Onset.Sub(v.Fault.Began).Round(time.Millisecond)
	}
	for _, f := range v.Findings {
		const what = "to detect"
		if f.TimeToDetectMS == nil {
			continue
		}
		if took, known := times[what]; !known || ms(*f.TimeToDetectMS) < took {
			times[what] = ms(*f.TimeToDetectMS)
		}
	}
	for _, m := range v.Remedies {
		if m.TimeToRecoverMS != nil {
			times["to recover: "+m.Name] = ms(*m.TimeToRecoverMS)
		}
		if m.TimeToQuietMS != nil {
			times["to quiet detectors: "+m.Name] = ms(*m.TimeToQuietMS)
		}
	}
	return times
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// names are the keys of two maps, in order.
func names[K cmp.Ordered, V any](maps ...map[K]V) []K {
	var all []K
	for _, m := range maps {
		for k := range m {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
