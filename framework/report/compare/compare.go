// Package compare finds the differences between two reports of a scenario: verdicts,
// findings, times and the conditions under which they ran.
package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/each"
)

// Difference is a value that differs between two reports. It is empty for a report that
// does not have it.
type Difference struct {
	Variant string // its title; empty: of the whole run
	What    string
	A, B    string
}

// Time is a time that both reports have, and that differs.
type Time struct {
	Variant, What string
	A, B          time.Duration
}

// Result is what differs between two reports.
type Result struct {
	A, B report.Report
	// Verdicts are the differing verdicts of the run, and of variants, remedies and checks that
	// both reports have.
	Verdicts []Difference
	// Findings are the findings that only one report has. Settling ones are left out: whether a
	// poll sees them depends on its moment.
	Findings []Difference
	// Impacted are the impacted probes that only one report has.
	Impacted []Difference
	// Times are the times that differ.
	Times []Time
	// Conditions are differences of the runs themselves: machine, versions, variants.
	Conditions []Difference
}

// Reports compares two reports of one scenario.
func Reports(a, b report.Report) (Result, error) {
	r := Result{A: a, B: b}
	if a.Scenario != b.Scenario {
		return r, fmt.Errorf("the reports are of different scenarios, %s and %s", a.Scenario, b.Scenario)
	}
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
		r.times(title, one, other)
	}
	for _, other := range b.Variants {
		if _, both := find(a, other.Title()); !both {
			r.Conditions = append(r.Conditions, Difference{other.Title(), "variant", "", "ran: " + other.Verdict})
		}
	}
	if common == 0 {
		return r, fmt.Errorf("no variant of %s ran in both", a.Scenario)
	}
	return r, nil
}

func find(r report.Report, title string) (report.Variant, bool) {
	return each.First(r.Variants, func(v report.Variant) bool { return v.Title() == title })
}

// machineOf are the properties of a machine that times depend on.
func machineOf(r report.Report) map[string]string {
	properties := map[string]string{}
	if facts, known := r.Machine.(map[string]any); known {
		for _, name := range []string{"cpus", "memory_gib", "kernel"} {
			properties[name] = fmt.Sprint(facts[name])
		}
	}
	if len(r.Guests) > 0 {
		properties["accelerator"] = r.Guests[0].Accelerator
	}
	return properties
}

func (r *Result) conditions() {
	add := func(what, a, b string) {
		if a != b {
			r.Conditions = append(r.Conditions, Difference{What: what, A: a, B: b})
		}
	}
	a, b := machineOf(r.A), machineOf(r.B)
	for _, name := range []string{"cpus", "memory_gib", "kernel", "accelerator"} {
		add(name, a[name], b[name])
	}
	add("relapse", r.A.Relapse, r.B.Relapse)
	if r.A.Topology != nil && r.B.Topology != nil {
		inA, inB := r.A.Topology.Subnets(), r.B.Topology.Subnets()
		for _, name := range names(inA, inB) {
			if inA[name] != inB[name] {
				add("subnet of "+name, inA[name].String(), inB[name].String())
			}
		}
	}
	for _, v := range r.A.Variants {
		w, both := each.First(r.B.Variants, func(w report.Variant) bool { return r.B.ScopeOf(w) == r.A.ScopeOf(v) })
		if both && (v.Topology == nil) != (w.Topology == nil) {
			add("second lab for "+r.A.ScopeOf(v), yes(v.Topology != nil), yes(w.Topology != nil))
		}
	}
	for _, ref := range names(r.A.Images, r.B.Images) {
		add("image "+ref, r.A.Images[ref], r.B.Images[ref])
	}
	add("command", r.A.Command, r.B.Command)
	add("not finished", unfinished(r.A), unfinished(r.B))
	add("slowed down by other work", yes(r.A.CPU.Slowed()), yes(r.B.CPU.Slowed()))
}

func unfinished(r report.Report) string {
	if r.Unfinished == nil {
		return ""
	}
	return "running steps: " + strings.Join(r.Unfinished.Steps, ", ")
}

func yes(holds bool) string {
	if holds {
		return "yes"
	}
	return ""
}

func (r *Result) verdict(variant, what, a, b string) {
	if a != b {
		r.Verdicts = append(r.Verdicts, Difference{variant, what, a, b})
	}
}

// variants compares the results of a variant, except its times.
func (r *Result) variants(title string, a, b report.Variant) {
	for _, name := range names(a.Components, b.Components) {
		if a.Components[name] != b.Components[name] {
			r.Conditions = append(r.Conditions, Difference{title, name, a.Components[name], b.Components[name]})
		}
	}
	r.verdict(title, "verdict", a.Verdict, b.Verdict)
	for _, m := range a.Remedies {
		if n, both := each.First(b.Remedies, func(n report.Remedy) bool { return n.ID == m.ID }); both {
			r.verdict(title, "remedy: "+m.Name, m.Verdict, n.Verdict)
		}
	}
	for _, c := range a.Checks {
		if d, both := each.First(b.Checks, func(d report.Check) bool { return d.ID == c.ID }); both {
			r.verdict(title, "check: "+c.Name, holds(c), holds(d))
		}
	}
	inA, inB := findings(a), findings(b)
	r.Findings = append(r.Findings, apart(title, inA, inB, finding.text, "found")...)
	probe := func(name string) string { return "probe " + name }
	r.Impacted = append(r.Impacted, apart(title, a.ProbesHurt, b.ProbesHurt, probe, "impacted")...)
}

// apart is what only one of two lists has, which is so.
func apart[T comparable](title string, a, b []T, text func(T) string, so string) []Difference {
	onlyA := each.Where(a, func(one T) bool { return !slices.Contains(b, one) })
	onlyB := each.Where(b, func(one T) bool { return !slices.Contains(a, one) })
	return slices.Concat(each.Of(onlyA, func(one T) Difference { return Difference{Variant: title, What: text(one), A: so} }),
		each.Of(onlyB, func(one T) Difference { return Difference{Variant: title, What: text(one), B: so} }))
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

type finding struct {
	detect.ID
	during string
}

func (f finding) text() string { return f.String() + " (" + f.during + ")" }

func findings(v report.Variant) []finding {
	var all []finding
	for _, f := range v.Findings {
		key := finding{f.ID(), f.During}
		if f.State != detect.Pending && !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

func (r *Result) times(title string, a, b report.Variant) {
	inA, inB := timesOf(a), timesOf(b)
	for _, what := range names(inA, inB) {
		one, timed := inA[what]
		other, timedToo := inB[what]
		if timed && timedToo && one != other {
			r.Times = append(r.Times, Time{title, what, one, other})
		}
	}
}

// timesOf are the times of a variant by name. Those of a repeated variant are of the run
// that its report shows.
func timesOf(v report.Variant) map[string]time.Duration {
	times := map[string]time.Duration{}
	if v.Repeats == nil && v.ElapsedMS > 0 {
		times["from installation to verdict"] = ms(v.ElapsedMS)
	}
	if v.Onset != nil && v.Fault != nil {
		times["from the fault to the first lost packet"] = v.Onset.Sub(v.Fault.Began).Round(time.Millisecond)
	}
	if took, known := v.TimeToDetect(); known {
		times["to detect"] = took
	}
	for _, m := range v.Remedies {
		if m.TimeToRecoverMS != nil {
			times["to recover: "+m.Name] = ms(*m.TimeToRecoverMS)
		}
		if m.TimeToQuietMS != nil {
			times["to no active findings: "+m.Name] = ms(*m.TimeToQuietMS)
		}
	}
	return times
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

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
