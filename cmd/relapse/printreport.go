package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/verdict"
)

// printReport prints a summary of a run, which must make sense without the report's page.
func printReport(out io.Writer, r report.Report, output string) {
	dir := filepath.Join(output, r.Scenario, r.Run)
	lines := []string{fmt.Sprintf("%s: %s%s", r.Scenario, strings.ToUpper(r.Result()), reservation(r))}
	last := []string{}
	if r.CPU.Slowed() {
		last = append(last, fmt.Sprintf("  slowed down: other programs took %.0f%% of the CPUs, the lab %.0f%%; "+
			"the verdict is valid, the times are not",
			100*r.CPU.Others, 100*r.CPU.Lab))
	}
	last = append(last, fmt.Sprintf("  images %.1fs, lab %.1fs, total %.1fs; report: %s",
		float64(r.Timings.Images)/1000, float64(r.Timings.Lab)/1000, float64(r.Timings.Total)/1000,
		filepath.Join(dir, page.Name)))
	for _, line := range page.Screen(dir, r) {
		lines = append(lines, "  "+line)
	}
	width := widthOf(out)
	fmt.Fprintln(out)
	for i, line := range slices.Concat(lines, last) {
		line = plain.Line(line)
		if width > 0 && i < len(lines) { // the path of the report is not cut
			line = ansi.Truncate(line, width, "…")
		}
		fmt.Fprintln(out, line)
	}
}

func widthOf(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// reservation says what limits a verdict; empty for a complete run.
func reservation(r report.Report) string {
	switch {
	case r.Ablated == string(verdict.AblateAll):
		return " (each part is switched off in turn, and must change the verdict)"
	case r.Ablated != "":
		return " (without " + r.Ablated + ")"
	case slices.ContainsFunc(r.Variants, func(v report.Variant) bool { return v.Expected == "" }):
		return " (version without an expectation: its verdict is what was observed)"
	case r.Half != "":
		return " (half a pair: " + r.Half + ")"
	}
	return ""
}
