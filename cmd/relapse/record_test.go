package main

import (
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rates.json")
	s := framework.Scenario{Variants: []framework.Variant{
		{Name: "new", Role: framework.Fixed, Script: func() framework.Script { return framework.Script{} }},
		{Name: "old", Role: framework.Affected, Script: func() framework.Script {
			return framework.Script{Trials: &framework.Trials{Unit: "tick", File: file}}
		}},
	}}
	run := func(verdict framework.Verdict, rounds int, struck bool) report.Repeat {
		return report.Repeat{Verdict: string(verdict), Race: &report.Race{Rounds: rounds, Struck: struck, Accelerator: "tcg"}}
	}
	r := report.Report{Variants: []report.Variant{
		{Role: "affected", Repeats: &report.Repeats{Runs: []report.Repeat{
			run(framework.Reproduced, 1, true), run(framework.Reproduced, 2, true), run(framework.Prevented, 4, false),
			run(framework.Unknown, 1, false), {Verdict: string(framework.Vacuous)},
		}}},
		{Role: "fixed", Repeats: &report.Repeats{Runs: []report.Repeat{run(framework.Prevented, 3, false)}}},
	}}
	must.Fail(t, checkRecord([]framework.Scenario{s}, 3), "in the project's folder")
	must.Fail(t, checkRecord([]framework.Scenario{s}, 1), "--repeat")
	must.Fail(t, checkRecord([]framework.Scenario{{Incident: framework.Incident{Name: "calm"}}}, 3), "calm is not probabilistic")
	must.Write(t, file, `{"tcg": [{"rounds": 1, "struck": true, "count": 43}]}`)
	if runs, err := record(s, r); err != nil || runs != 3 {
		t.Fatalf("%d runs, %v; want the three that were judged", runs, err)
	}
	got := must.Get(framework.ParseRates(must.Read(t, file)))(t)
	want := framework.Rates{"tcg": {{Trials: 1, Occurred: true, Count: 44}, {Trials: 2, Occurred: true, Count: 1}, {Trials: 4, Count: 1}}}
	must.Equal(t, "", want, got)
}
