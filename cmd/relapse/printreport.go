package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/relapse-dev/relapse/framework/report"
)

// printReport tells what became of a scenario, for somebody who reads only
// this.
func printReport(out io.Writer, r report.Report, dir string) {
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
		for _, reason := range v.Reasons {
			fmt.Fprintf(out, "    because    %s\n", reason)
		}
	}
	fmt.Fprintf(out, "\n  images %.1fs, lab %.1fs, total %.1fs; report: %s\n",
		float64(r.Timings.Images)/1000, float64(r.Timings.Lab)/1000, float64(r.Timings.Total)/1000,
		filepath.Join(dir, r.Scenario, "report.json"))
}
