package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
)

// printReport prints what became of a scenario. It must make sense to a reader
// who sees nothing else of the run.
func printReport(out io.Writer, r report.Report, output string) {
	fmt.Fprintf(out, "\n%s: %s%s\n", r.Scenario, strings.ToUpper(r.Verdict), reservation(r))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, v := range r.Variants {
		expected := "expected " + v.Expected
		if v.Expected == "" {
			expected = "nothing expected"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%.1fs\n", titleOf(v), v.Role, v.Verdict, expected, float64(v.ElapsedMS)/1000)
	}
	for _, v := range r.NotRun {
		fmt.Fprintf(table, "  %s\tnot run: %s\n", v.Name, v.Reason)
	}
	table.Flush()
	for _, v := range r.Variants {
		fmt.Fprintf(out, "\n  %s (%s, %s)\n", titleOf(v), v.Role, v.Form)
		if len(v.ProbesHurt) > 0 {
			fmt.Fprintf(out, "    hurt       %s (%d of %d packets lost)\n", strings.Join(v.ProbesHurt, ", "), v.Packets.Lost, v.Packets.Sent)
		} else if v.Packets.Sent > 0 {
			fmt.Fprintf(out, "    hurt       no probe (%d of %d packets lost)\n", v.Packets.Lost, v.Packets.Sent)
		}
		printThin(out, v.Probes)
		if v.Refuses != "" {
			fmt.Fprintf(out, "    refuses    to start: %s\n", v.Refuses)
		}
		for _, f := range v.Findings {
			fmt.Fprintf(out, "    finding    %s %s, %s: %s\n", f.State, f.Kind, came(f, v), f.Says)
		}
		for _, m := range v.Remedies {
			printRemedy(out, m)
		}
		if v.Repeats != nil {
			printRepeats(out, v)
		}
		for _, reason := range v.Reasons {
			fmt.Fprintf(out, "    because    %s\n", reason)
		}
	}
	if r.CPU.Slowed() {
		fmt.Fprintf(out, "\n  slowed down: all but the lab took %.0f%% of the CPUs, the lab %.0f%%; the verdict stands, the times say little\n",
			100*r.CPU.Others, 100*r.CPU.Lab)
	}
	fmt.Fprintf(out, "\n  images %.1fs, lab %.1fs, total %.1fs; report: %s\n",
		float64(r.Timings.Images)/1000, float64(r.Timings.Lab)/1000, float64(r.Timings.Total)/1000,
		filepath.Join(output, r.Scenario, r.Run, page.Name))
}

// reservation says what a verdict does not speak of, or speaks of instead;
// empty for a whole run of both halves.
func reservation(r report.Report) string {
	switch {
	case r.Ablated == string(engine.AblateAll):
		return " (each part switched off in turn, and each must change the verdict)"
	case r.Ablated != "":
		return " (without " + r.Ablated + ")"
	case slices.ContainsFunc(r.Variants, func(v report.Variant) bool { return v.Expected == "" }):
		return " (nobody has classified this version: its verdict is what was seen)"
	case r.Half != "":
		return " (half a pair: " + r.Half + ")"
	}
	return ""
}

// titleOf is a variant's name, and what it ran without.
func titleOf(v report.Variant) string {
	if v.Ablated != "" {
		return v.Name + " without " + v.Ablated
	}
	return v.Name
}

// printThin tells of probes that had less traffic than their rate asks for. A
// busy machine skips a packet now and then: up to a tenth is not worth a line.
func printThin(out io.Writer, probes []report.Probe) {
	judged := func(p report.Probe) int { return p.Answered + p.Lost }
	thin := slices.DeleteFunc(slices.Clone(probes), func(p report.Probe) bool { return 10*judged(p) >= 9*p.Due })
	if len(thin) == 0 {
		return
	}
	worst := slices.MinFunc(thin, func(a, b report.Probe) int { return judged(a)*b.Due - judged(b)*a.Due })
	fmt.Fprintf(out, "    traffic    too little of %d probes of %d; least of %s: of %d packets due %d were sent, and %d answered or lost\n",
		len(thin), len(probes), worst.Name, worst.Due, worst.Sent, judged(worst))
}

// came says when a detector came to a finding.
func came(f report.Finding, v report.Variant) string {
	switch {
	case f.CameMS == nil:
		return "before the fault"
	case f.During != "fault":
		return fmt.Sprintf("%d ms into the lesser form %q", *f.CameMS, f.During)
	case f.TimeToDetectMS != nil:
		return fmt.Sprintf("%d ms after the first lost packet", *f.TimeToDetectMS)
	case f.State == "active" && v.Onset != nil:
		return fmt.Sprintf("%d ms into the fault, before the first lost packet", *f.CameMS)
	}
	return fmt.Sprintf("%d ms into the fault", *f.CameMS)
}

// printRemedy tells what a remedy did, and how long that took.
func printRemedy(out io.Writer, m report.Remedy) {
	took, why := "", ""
	if m.TimeToRecoverMS != nil {
		took = fmt.Sprintf(" in %d ms", *m.TimeToRecoverMS)
		if m.TimeToQuietMS != nil {
			took += fmt.Sprintf(", detectors quiet from %d ms on", *m.TimeToQuietMS)
		}
	}
	if m.Verdict == "unknown" {
		why = ": " + m.Reason
	}
	fmt.Fprintf(out, "    remedy     %s: %s%s (expected: %s)%s\n", m.Name, m.Verdict, took, m.Expected, why)
}

// printRepeats tells how often a variant came to its verdict.
func printRepeats(out io.Writer, v report.Variant) {
	r := v.Repeats
	fmt.Fprintf(out, "    repeated   %s\n", rate(r.Expected, v.Expected))
	if len(r.NotJudged) > 0 {
		judged := "none"
		if r.OfJudged != nil {
			judged = rate(*r.OfJudged, v.Expected)
		}
		fmt.Fprintf(out, "    judged     %s; not judged:", judged)
		for _, number := range r.NotJudged {
			fmt.Fprintf(out, " #%d", number)
		}
		fmt.Fprintln(out)
	}
	for i, run := range r.Runs {
		onset := ""
		if run.OnsetMS != nil {
			onset = fmt.Sprintf(", hurt %.1fs after the fault", float64(*run.OnsetMS)/1000)
		}
		fmt.Fprintf(out, "      %3d      %s in %.1fs%s\n", i+1, run.Verdict, float64(run.ElapsedMS)/1000, onset)
	}
}

// rate says how often a verdict came.
func rate(r report.Rate, verdict string) string {
	return fmt.Sprintf("%d of %d %s (95%% confidence: %.1f%% to %.1f%%)", r.Count, r.Runs, verdict, 100*r.Low, 100*r.High)
}
