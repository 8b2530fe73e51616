package summary

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func drain() report.Report {
	return report.Report{
		Scenario: "node-drain", Verdict: "pass", Timings: report.Timings{Total: 203_250},
		Variants: []report.Variant{
			{Name: "old", Role: "affected", Expected: "reproduced", Verdict: "reproduced"},
			{Name: "new", Role: "fixed", Expected: "prevented", Verdict: "prevented"},
		},
	}
}

func night() []report.Report {
	unknown := drain()
	unknown.Scenario, unknown.Verdict, unknown.Variants[1].Verdict = "added-nic", "inconclusive", "unknown"
	unknown.Variants[1].Reasons = []string{"too little `traffic`\nsecond line", "another"}
	unknown.CPU = &report.CPU{Others: 0.9}
	missed := drain()
	missed.Scenario, missed.Verdict, missed.Variants[0].Verdict = "masquerade-drift", "fail", "missed"
	missed.Merged = &report.Merged{Conflicts: []string{"old ran twice: " + strings.Repeat("long ", 50)}}
	return []report.Report{drain(), unknown, missed}
}

func TestMarkdown(t *testing.T) { goldentest.Compare(t, "summary.md", Markdown(night())) }

// TestOneScreen is a night in which everything went wrong.
func TestOneScreen(t *testing.T) {
	var all []report.Report
	for i := range 40 {
		r := night()[i%3]
		r.Scenario = fmt.Sprint("s", i)
		all = append(all, r)
	}
	dir := t.TempDir()
	must.NoError(t, Write(dir, all))
	text := must.Read(t, filepath.Join(dir, Name))
	if lines := strings.Count(string(text), "\n"); lines > 30 {
		t.Errorf("%d lines are no screen:\n%s", lines, text)
	}
	must.Contain(t, string(text), "## relapse: 14 of 40 scenarios passed", "\nand 28 more\n", "\n- and 29 more\n")
}
