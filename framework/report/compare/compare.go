// Package compare finds the differences between two reports of a scenario: verdicts,
// findings, times and the conditions under which they ran.
package compare

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
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
	// Times are the times that both reports have, and that are not the same as they are written, to 100 ms.
	Times []Difference
	// Conditions are differences of the runs themselves: machine, versions, variants.
	Conditions []Difference
}

// Reports compares two reports of one scenario.
func Reports(a, b report.Report) (Result, error) {
	r := Result{A: a, B: b}
	if a.Scenario != b.Scenario {
		return r, fmt.Errorf("the reports are of different scenarios, %s and %s", a.Scenario, b.Scenario)
	}
	r.Conditions = slices.Concat(
		differ("", machineOf(a), machineOf(b), true), differ("", subnetsOf(a), subnetsOf(b), a.Topology != nil && b.Topology != nil),
		differ("", secondLabsOf(a), secondLabsOf(b), false), differ("", runOf(a), runOf(b), true))
	r.Verdicts = differ("", []fact{{what: "run", value: a.Verdict}}, []fact{{what: "run", value: b.Verdict}}, true)
	common := 0
	for _, one := range a.Variants {
		title := one.Title()
		other, both := find(b, title)
		if !both {
			r.Conditions = append(r.Conditions, Difference{title, "variant", "ran: " + one.Verdict, ""})
			continue
		}
		common++
		r.Conditions = append(r.Conditions, differ(title, valuesOf("", one.Components), valuesOf("", other.Components), true)...)
		r.Verdicts = append(r.Verdicts, differ(title, verdictsOf(one), verdictsOf(other), false)...)
		r.Findings = append(r.Findings, differ(title, findingsOf(one), findingsOf(other), true)...)
		r.Impacted = append(r.Impacted, differ(title, impactedIn(one), impactedIn(other), true)...)
		r.Times = append(r.Times, differ(title, timesOf(one), timesOf(other), false)...)
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

// fact is a value of a report. Two reports may call one value by different names: then it has an ID.
type fact struct{ id, what, value string }

// differ are the facts whose values differ in two reports. With alone, a fact of only one report is a difference.
func differ(variant string, a, b []fact, alone bool) []Difference {
	same := func(f fact) func(fact) bool {
		return func(other fact) bool { return other.id == f.id && (f.id != "" || other.what == f.what) }
	}
	var all []Difference
	for _, f := range a {
		if other, both := each.First(b, same(f)); f.value != other.value && (both || alone) {
			all = append(all, Difference{variant, f.what, f.value, other.value})
		}
	}
	for _, f := range b {
		if alone && f.value != "" && !slices.ContainsFunc(a, same(f)) {
			all = append(all, Difference{variant, f.what, "", f.value})
		}
	}
	return all
}

func valuesOf(what string, values map[string]string) []fact {
	return each.Of(slices.Sorted(maps.Keys(values)), func(name string) fact { return fact{what: what + name, value: values[name]} })
}

// machineOf are the properties of a machine that times depend on.
func machineOf(r report.Report) (all []fact) {
	if facts, ok := r.Machine.(map[string]any); ok {
		for _, name := range []string{"cpus", "memory_gib", "kernel"} {
			all = append(all, fact{what: name, value: fmt.Sprint(facts[name])})
		}
	}
	if len(r.Guests) > 0 {
		all = append(all, fact{what: "accelerator", value: r.Guests[0].Accelerator})
	}
	return append(all, fact{what: "relapse", value: r.Relapse})
}

// subnetsOf are the subnets of the lab. Old reports do not have them.
func subnetsOf(r report.Report) (all []fact) {
	if r.Topology != nil {
		for _, n := range r.Topology.Networks {
			all = append(all, fact{what: "subnet of " + n.Name, value: n.Subnet.String()})
		}
	}
	return all
}

func secondLabsOf(r report.Report) []fact {
	return each.Of(r.Variants, func(v report.Variant) fact {
		return fact{what: "second lab for " + r.ScopeOf(v), value: yes(v.Topology != nil)}
	})
}

func runOf(r report.Report) []fact {
	unfinished := ""
	if r.Unfinished != nil {
		unfinished = "running steps: " + strings.Join(r.Unfinished.Steps, ", ")
	}
	return append(valuesOf("image ", r.Images),
		fact{what: "command", value: r.Command}, fact{what: "not finished", value: unfinished},
		fact{what: "slowed down by other work", value: yes(r.CPU.Slowed())})
}

func yes(holds bool) string {
	if holds {
		return "yes"
	}
	return ""
}

func verdictsOf(v report.Variant) []fact {
	all := []fact{{what: "verdict", value: v.Verdict}}
	for _, m := range v.Remedies {
		all = append(all, fact{"remedy " + m.ID, "remedy: " + m.Name, m.Verdict})
	}
	for _, c := range v.Checks {
		says := "does not hold"
		switch {
		case c.Holds:
			says = "holds"
		case c.Unknown:
			says = "not known"
		}
		all = append(all, fact{"check " + c.ID, "check: " + c.Name, says})
	}
	return all
}

func findingsOf(v report.Variant) []fact {
	var all []fact
	for _, f := range v.Findings {
		found := fact{what: f.ID().String() + " (" + f.During + ")", value: "found"}
		if f.State != detect.Pending && !slices.Contains(all, found) {
			all = append(all, found)
		}
	}
	return all
}

func impactedIn(v report.Variant) []fact {
	return each.Of(v.ProbesHurt, func(probe string) fact { return fact{what: "probe " + probe, value: "impacted"} })
}

// timesOf are the times of a variant; if it was repeated, of the run that its report shows.
func timesOf(v report.Variant) []fact {
	times := map[string]string{}
	if v.Repeats == nil && v.ElapsedMS > 0 {
		times["from installation to verdict"] = report.SpanMS(v.ElapsedMS)
	}
	if v.Onset != nil && v.Fault != nil {
		times["from the fault to the first lost packet"] = report.Span(v.Onset.Sub(v.Fault.Began).Round(time.Millisecond))
	}
	if took, found := v.TimeToDetect(); found {
		times["to detect"] = report.Span(took)
	}
	for _, m := range v.Remedies {
		if m.TimeToRecoverMS != nil {
			times["to recover: "+m.Name] = report.SpanMS(*m.TimeToRecoverMS)
		}
		if m.TimeToQuietMS != nil {
			times["to no active findings: "+m.Name] = report.SpanMS(*m.TimeToQuietMS)
		}
	}
	return valuesOf("", times)
}

// Print writes what differs, for people.
func (r Result) Print(out io.Writer) {
	for _, side := range []struct {
		name string
		run  report.Report
	}{{"A", r.A}, {"B", r.B}} {
		fmt.Fprintf(out, "%s  %s %s: %s\n", side.name, side.run.Scenario, side.run.Run, side.run.Verdict)
	}
	table(out, "conditions that differ", r.Conditions)
	r.PrintJudgements(out)
	if len(r.Times) == 0 {
		fmt.Fprintf(out, "\ntimes: the same\n")
	}
	table(out, "times", r.Times)
}

// PrintJudgements writes which verdicts and findings differ.
func (r Result) PrintJudgements(out io.Writer) {
	if len(r.Verdicts) == 0 {
		fmt.Fprintf(out, "\nverdicts: the same\n")
	}
	table(out, "verdicts", r.Verdicts)
	r.reasons(out)
	if len(r.Findings) == 0 {
		fmt.Fprintf(out, "\nfindings: the same\n")
	}
	table(out, "findings", r.Findings)
	table(out, "impacted probes", r.Impacted)
}

func table(out io.Writer, title string, differences []Difference) {
	if len(differences) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, d := range differences {
		variant := cmp.Or(d.Variant, "(run)")
		switch {
		case d.B == "":
			fmt.Fprintf(w, "  %s\t%s\tA only: %s\n", variant, d.What, d.A)
		case d.A == "":
			fmt.Fprintf(w, "  %s\t%s\tB only: %s\n", variant, d.What, d.B)
		default:
			fmt.Fprintf(w, "  %s\t%s\tA %s, B %s\n", variant, d.What, d.A, d.B)
		}
	}
	w.Flush()
}

func (r Result) reasons(out io.Writer) {
	for _, d := range r.Verdicts {
		for _, side := range []struct {
			name string
			run  report.Report
		}{{"A", r.A}, {"B", r.B}} {
			v, there := find(side.run, d.Variant)
			if d.What != "verdict" || !there {
				continue
			}
			for _, reason := range v.Reasons {
				fmt.Fprintf(out, "    %s in %s: %s\n", d.Variant, side.name, reason)
			}
		}
	}
}
