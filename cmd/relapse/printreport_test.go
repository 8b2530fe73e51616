package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func rendered(r report.Report) string {
	var out strings.Builder
	r.Run, r.Timings = "2026-01-02T03-04-00Z", report.Timings{Images: 120, Lab: 26000, Total: 118000}
	printReport(&out, r, "reports")
	return out.String()
}

// What is printed of the reports in testdata: of one with most kinds of lines, of a version without an
// expectation, and of repeats.
func TestPrintReport(t *testing.T) {
	for _, name := range []string{"report", "report-unclassified", "repeats"} {
		var r report.Report
		must.NoError(t, json.Unmarshal(must.Read(t, "testdata/printed-"+name+".json"), &r))
		golden(t, name, rendered(r))
	}
}

// The limits of a verdict are printed next to it.
func TestVerdictLine(t *testing.T) {
	for _, test := range []struct {
		name   string
		report report.Report
		want   string
	}{
		{"a pair", report.Report{Verdict: "pass"}, "node-drain: PASS\n"},
		{"half a pair", report.Report{Verdict: "pass", Half: "no fixed variant ran"}, "node-drain: PASS (half a pair: no fixed variant ran)\n"},
		{"without a part", report.Report{Verdict: "fail", Ablated: "detector"}, "node-drain: FAIL (without detector)\n"},
		{"every part in turn",
			report.Report{Verdict: "pass", Ablated: "all", Variants: []report.Variant{
				{Name: "old", Ablated: "fault", Role: "affected", Expected: "vacuous", Verdict: "vacuous"},
			}},
			"node-drain: PASS (each part is switched off in turn, and must change the verdict)\n" +
				"  outcome    Nothing was measured of old without fault\n  verdict    ✔ old without fault  affected    vacuous as expected, 0s\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.report.Scenario = "node-drain"
			must.Contain(t, "begins"+rendered(test.report), "begins\n"+test.want)
		})
	}
}
