package junit

import (
	"encoding/xml"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// step took two seconds.
func step(scope, name, failed string, broke bool) report.Step {
	return report.Step{Scope: scope, Name: name, Began: began, Ended: new(began.Add(2 * time.Second)), Failed: failed, Broke: broke}
}

// one is a run with one variant.
func one(verdict, expected, became string, steps ...report.Step) report.Report {
	return report.Report{
		Scenario: "drain", Owner: "@net", Verdict: verdict, Started: began, Steps: steps,
		Variants: []report.Variant{{Name: "old", Expected: expected, Verdict: became, ElapsedMS: 1500, Reasons: []string{"because"}}},
	}
}

func TestSuite(t *testing.T) {
	up := step("lab", "lab is up", "", false)
	check := step("old", "check after: rules", "not as expected: 2 rules", false)
	broken := step("old", "remedy: restart", "no answer", true)
	for _, test := range []struct {
		name string
		run  report.Report
		want []string // the cases: name, its result, and the first line of why
	}{
		{"all is well", one("pass", "reproduced", "reproduced", up), []string{"lab: lab is up", "old: verdict"}},
		{"what must not be is a failure", one("fail", "prevented", "reproduced", up, check),
			[]string{"lab: lab is up", "old: check after: rules: failure: not as expected: 2 rules", "old: verdict: failure: reproduced, expected prevented"}},
		{"unknown is an error, and all that went wrong with it", one("inconclusive", "reproduced", "unknown", check, broken),
			[]string{"old: check after: rules: error: not as expected: 2 rules", "old: remedy: restart: error: no answer", "old: verdict: error: unknown, expected reproduced"}},
		{"vacuous is an error", one("inconclusive", "prevented", "vacuous", step("old", "fault", "not as expected: it did not take hold", false)),
			[]string{"old: fault: error: not as expected: it did not take hold", "old: verdict: error: vacuous, expected prevented"}},
		{"a remedy that could not be judged, of a variant that was", one("inconclusive", "reproduced", "reproduced", broken),
			[]string{"old: remedy: restart: error: no answer", "old: verdict"}},
		{"no lab", one("inconclusive", "reproduced", "unknown", step("lab", "lab is up", "no space", true)),
			[]string{"lab: lab is up: error: no space", "old: verdict: error: unknown, expected reproduced"}},
		{"without its fault, as one that switches it off sees it", one("inconclusive", "reproduced", "vacuous"), []string{"old: verdict: error: vacuous, expected reproduced"}},
		{"a version of which nothing is expected", one("observed", "", "reproduced"), []string{"old: verdict: skipped: reproduced"}},
		{"such a version that could not be judged", one("inconclusive", "", "unknown"), []string{"old: verdict: error: unknown"}},
		{"a reason that belongs to no step", one("fail", "reproduced", "reproduced"), []string{"old: verdict", "run: failure: fail"}},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, cases(Suite(test.run))) })
	}
}

func TestSuiteOfSeveral(t *testing.T) {
	all := one("pass", "vacuous", "vacuous", step("old without fault", "fault", "not as expected: it did not take hold", false))
	all.Ablated, all.Variants[0].Ablated = "all", "fault"
	want := []string{"old without fault: fault: error: not as expected: it did not take hold", "old without fault: verdict"}
	must.Equal(t, "every part in turn", want, cases(Suite(all)))
	repeats := one("fail", "reproduced", "missed", step("old 1/2", "detectors", "not as expected: none", false), step("old 2/2", "baseline", "not as expected: loss", false))
	repeats.Variants[0].Repeats = &report.Repeats{Runs: []report.Repeat{{Scope: "old 1/2", Verdict: "missed"}, {Scope: "old 2/2", Verdict: "vacuous"}}}
	want = []string{
		"old 1/2: detectors: failure: not as expected: none", "old 2/2: baseline: error: not as expected: loss",
		"old 1/2: verdict: failure: missed, expected reproduced", "old 2/2: verdict: error: vacuous, expected reproduced",
	}
	must.Equal(t, "repeats", want, cases(Suite(repeats)))
	killed := one("inconclusive", "reproduced", "", report.Step{Scope: "old", Name: "fault", Began: began})
	killed.Unfinished = &report.Unfinished{Steps: []string{"old: fault"}}
	killed.NotRun = []report.NotRun{{Name: "vendor", Reason: "only with --family ipv4: its BGP has no IPv6"}}
	want = []string{
		"old: verdict: error: not judged, expected reproduced", "vendor: skipped: only with --family ipv4: its BGP has no IPv6",
		"run: error: it has not ended; running steps: old: fault",
	}
	must.Equal(t, "killed", want, cases(Suite(killed)))
}

// cases lists the cases of a suite, and says if they are not counted right.
func cases(s reporters.JUnitTestSuite) []string {
	var listed []string
	counted := map[string]int{}
	for _, c := range s.TestCases {
		text, state := c.Name, "passed"
		why := ""
		switch {
		case c.Failure != nil:
			state, why = "failure", c.Failure.Message
		case c.Error != nil:
			state, why = "error", c.Error.Message
		case c.Skipped != nil:
			state, why = "skipped", c.Skipped.Message
		}
		counted[state]++
		if state != "passed" {
			why, _, _ = strings.Cut(why, "\n")
			text += ": " + state + ": " + why
		}
		listed = append(listed, text)
	}
	if s.Tests != len(s.TestCases) || s.Failures != counted["failure"] || s.Errors != counted["error"] || s.Skipped != counted["skipped"] {
		listed = append(listed, "it was not counted right")
	}
	return listed
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	a := one("fail", "prevented", "reproduced", step("old", "fault", "", false))
	a.Timings.Total = 3000
	b := one("inconclusive", "reproduced", "unknown")
	must.NoError(t, Write(path, a, b))
	text := must.Read(t, path)
	var all reporters.JUnitTestSuites
	must.NoError(t, xml.Unmarshal(text, &all))
	if all.Tests != 3 || all.Failures != 1 || all.Errors != 1 || all.Disabled != 0 || all.Time != 3 || len(all.TestSuites) != 2 {
		t.Errorf("%+v", all)
	}
	first := all.TestSuites[0].TestCases[0]
	if first.Owner != "@net" || first.Classname != "drain" || first.Time != 2 || first.Status != "passed" {
		t.Errorf("%+v", first)
	}
	must.Equal(t, "", "unknown, expected reproduced\nbecause", all.TestSuites[1].TestCases[0].Error.Message)
}
