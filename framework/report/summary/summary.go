// Package summary writes the results of several runs as Markdown that fits on one
// screen: for the summary of a CI job, or a chat.
package summary

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
)

// Name is the file of a summary.
const Name = "summary.md"

// What fits on a screen.
const (
	scenarios = 12
	reasons   = 10
	letters   = 160 // of a reason
)

// Write writes output/summary.md.
func Write(output string, runs []report.Report) error {
	if err := rundir.Replace(filepath.Join(output, Name), []byte(Markdown(runs))); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}
	return nil
}

// Markdown summarises runs, at most one of each scenario. Those that did not pass come first.
func Markdown(runs []report.Report) string {
	sorted := slices.Clone(runs)
	slices.SortStableFunc(sorted, func(a, b report.Report) int { return cmp.Compare(rank(a), rank(b)) })
	passed := len(each.Where(sorted, func(r report.Report) bool { return r.Verdict == string(framework.Pass) }))
	var text strings.Builder
	fmt.Fprintf(&text, "## relapse: %d of %d scenarios passed\n\n", passed, len(sorted))
	text.WriteString("| scenario | verdict | variants as expected | took |\n|---|---|---|---|\n")
	for _, r := range sorted[:min(scenarios, len(sorted))] {
		text.WriteString(row(r))
	}
	if more := len(sorted) - scenarios; more > 0 {
		fmt.Fprintf(&text, "\nand %d more\n", more)
	}
	wrong := unexpected(sorted)
	if len(wrong) == 0 {
		return text.String()
	}
	text.WriteString("\n")
	for _, w := range wrong[:min(reasons, len(wrong))] {
		fmt.Fprintf(&text, "- %s\n", w)
	}
	if more := len(wrong) - reasons; more > 0 {
		fmt.Fprintf(&text, "- and %d more\n", more)
	}
	return text.String()
}

// rank orders runs by their verdicts: a run that needs attention comes first.
func rank(r report.Report) int {
	return slices.Index([]string{string(framework.Fail), string(framework.Inconclusive), string(framework.Observed), string(framework.Pass)},
		r.Verdict)
}

func row(r report.Report) string {
	expected := len(each.Where(r.Variants, func(v report.Variant) bool { return v.Verdict == v.Expected || v.Expected == "" }))
	verdict := plain.Cell(r.Result())
	if r.Verdict != string(framework.Pass) {
		verdict = "**" + verdict + "**"
	}
	if r.CPU.Slowed() {
		verdict += ", slowed down by other work"
	}
	return fmt.Sprintf("| %s | %s | %d of %d | %s |\n",
		plain.Cell(r.Scenario), verdict, expected, len(r.Variants), report.SpanMS(r.Timings.Total))
}

func unexpected(runs []report.Report) []string {
	var wrong []string
	for _, r := range runs {
		for _, v := range r.Variants {
			text := ""
			if v.Verdict != v.Expected && v.Expected != "" {
				text = plain.Inline(fmt.Sprintf(": expected %s, got %s", v.Expected, cmp.Or(v.Verdict, "no verdict")))
			}
			if len(v.Reasons) > 0 {
				text += ": " + short(v.Reasons[0])
			}
			if text != "" {
				wrong = append(wrong, fmt.Sprintf("%s, %s%s", plain.Inline(r.Scenario), plain.Inline(v.Name), text))
			}
		}
		if r.Unfinished != nil {
			wrong = append(wrong, fmt.Sprintf("%s has not ended; it was at: %s",
				plain.Inline(r.Scenario), short(strings.Join(r.Unfinished.Steps, ", "))))
		}
		if r.Merged != nil {
			for _, c := range r.Merged.Conflicts {
				wrong = append(wrong, fmt.Sprintf("%s: %s", plain.Inline(r.Scenario), short(c)))
			}
		}
	}
	return wrong
}

// short is the first line of a text, cut where it is long, in words that are no Markdown.
func short(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if cut := []rune(line); len(cut) > letters {
		line = string(cut[:letters]) + "…"
	}
	return plain.Code(line)
}
