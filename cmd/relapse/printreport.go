package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/relapse-dev/relapse/framework/report"
)

// printReport prints what became of a scenario. It must make sense to a reader
// who sees nothing else of the run.
func printReport(out io.Writer, r report.Report, output string) {
	fmt.Fprintf(out, "\n%s: %s\n", r.Scenario, strings.ToUpper(r.Verdict))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, v := range r.Variants {
		fmt.Fprintf(table, "  %s\t%s\t%s\texpected %s\t%.1fs\n", v.Name, v.Role, v.Verdict, v.Expected, float64(v.ElapsedMS)/1000)
	}
	for _, v := range r.NotRun {
		fmt.Fprintf(table, "  %s\tnot run: %s\n", v.Name, v.Reason)
	}
	table.Flush()
	for _, v := range r.Variants {
		fmt.Fprintf(out, "\n  %s (%s, %s)\n", v.Name, v.Role, v.Form)
		if len(v.ProbesHurt) > 0 {
			fmt.Fprintf(out, "    hurt       %s (%d of %d packets lost)\n", strings.Join(v.ProbesHurt, ", "), v.Packets.Lost, v.Packets.Sent)
		} else if v.Packets.Sent > 0 {
			fmt.Fprintf(out, "    hurt       no probe (%d of %d packets lost)\n", v.Packets.Lost, v.Packets.Sent)
		}
		for _, f := range v.Findings {
			found := "before the fault"
			if f.TimeToDetectMS != nil {
				found = fmt.Sprintf("after %d ms", *f.TimeToDetectMS)
			}
			fmt.Fprintf(out, "    finding    %s %s, %s: %s\n", f.State, f.Kind, found, f.Says)
		}
		for _, m := range v.Remedies {
			took := ""
			if m.TimeToRecoverMS != nil {
				took = fmt.Sprintf(" in %d ms", *m.TimeToRecoverMS)
			}
			fmt.Fprintf(out, "    remedy     %s: %s%s (expected: %s)\n", m.Name, m.Verdict, took, m.Expected)
		}
		if v.Repeats != nil {
			printRepeats(out, v)
		}
		for _, reason := range v.Reasons {
			fmt.Fprintf(out, "    because    %s\n", reason)
		}
	}
	fmt.Fprintf(out, "\n  images %.1fs, lab %.1fs, total %.1fs; report: %s\n",
		float64(r.Timings.Images)/1000, float64(r.Timings.Lab)/1000, float64(r.Timings.Total)/1000,
		filepath.Join(output, r.Scenario, r.Run, "report.json"))
}

// printRepeats tells how often a variant came to its verdict.
func printRepeats(out io.Writer, v report.Variant) {
	rate, runs := v.Repeats.Expected, v.Repeats.Runs
	fmt.Fprintf(out, "    repeated   %d of %d %s", rate.Count, rate.Runs, v.Expected)
	if rate.Runs > 0 {
		fmt.Fprintf(out, " (95%% confidence: %.1f%% to %.1f%%)", 100*rate.Low, 100*rate.High)
	}
	if more := len(runs) - rate.Runs; more > 0 {
		fmt.Fprintf(out, ", %d could not be judged", more)
	}
	fmt.Fprintln(out)
	for i, r := range runs {
		onset := ""
		if r.OnsetMS != nil {
			onset = fmt.Sprintf(", hurt %.1fs after the fault", float64(*r.OnsetMS)/1000)
		}
		fmt.Fprintf(out, "      %3d      %s in %.1fs%s\n", i+1, r.Verdict, float64(r.ElapsedMS)/1000, onset)
	}
}
