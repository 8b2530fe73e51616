package compare

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/relapse-dev/relapse/framework/report"
)

// Print writes what differs, for people.
func (r Result) Print(out io.Writer) {
	for _, side := range []struct {
		name string
		of   report.Report
	}{{"A", r.A}, {"B", r.B}} {
		fmt.Fprintf(out, "%s  %s %s: %s\n", side.name, side.of.Scenario, side.of.Run, side.of.Verdict)
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
			of   report.Report
		}{{"A", r.A}, {"B", r.B}} {
			v, there := find(side.of, d.Variant)
			if d.What != "verdict" || !there {
				continue
			}
			for _, reason := range v.Reasons {
				fmt.Fprintf(out, "    %s in %s: %s\n", d.Variant, side.name, reason)
			}
		}
	}
}
