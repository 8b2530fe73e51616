package main

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// storeRun stores the report of a run that passes, but for what change does to it,
// and returns its folder.
func storeRun(t *testing.T, dir string, change func(*report.Report)) string {
	t.Helper()
	r := report.Report{
		Schema: report.Schema, Scenario: "node-drain", Verdict: "pass", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Variants: []report.Variant{
			{Name: "cilium-1.11.6", Role: "affected", Form: "slice", Expected: "reproduced", Verdict: "reproduced", ElapsedMS: 100_000},
		},
	}
	if change != nil {
		change(&r)
	}
	folder := must.Get(report.NewRun(dir, r.Scenario, r.Started))(t)
	r.Run = filepath.Base(folder)
	must.NoError(t, r.Write(folder))
	return folder
}

// output runs the command, and returns its exit status, what it printed, and what it complained of.
func output(t *testing.T, args ...string) (status int, out, complained string) {
	t.Helper()
	var text bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&text)
	err := cmd.ExecuteContext(t.Context())
	return exitStatus(t.Context(), err), text.String(), complaint(t.Context(), err)
}

// use is a command line, with the exit status and a part of the output that it must have.
type use struct {
	name   string
	args   []string
	status int
	says   string
}

func (u use) run(t *testing.T, command ...string) {
	t.Run(u.name, func(t *testing.T) { printed(t, u.status, u.says, append(command, u.args...)...) })
}

// printed runs the command, which must end with this status and print this text.
func printed(t *testing.T, status int, text string, args ...string) {
	t.Helper()
	got, out, complained := output(t, args...)
	must.Equal(t, out+complained, status, got)
	must.Contain(t, out+complained, text)
}

func TestDiff(t *testing.T) {
	dir := t.TempDir()
	a := storeRun(t, dir, nil)
	slower := func(r *report.Report) { r.Variants[0].ElapsedMS, r.Started = 160_000, r.Started.Add(time.Hour) }
	b := storeRun(t, dir, slower)
	missed := storeRun(t, dir, func(r *report.Report) { r.Verdict, r.Variants[0].Verdict = "fail", "missed" })
	other := storeRun(t, dir, func(r *report.Report) { r.Scenario = "added-nic" })
	for _, test := range []use{
		{"only a time", []string{a, filepath.Join(b, "report.json")}, exitExpected, "from installation to verdict  A 1m40s, B 2m40s"},
		{"a verdict", []string{a, missed}, exitUnexpected, "cilium-1.11.6  verdict  A reproduced, B missed"},
		{"another scenario", []string{a, other}, exitUsage, "the reports are of different scenarios, node-drain and added-nic"},
		{"no run", []string{a, dir}, exitUsage, "no such file"},
		{"nothing", []string{a, filepath.Join(dir, "none")}, exitUsage, "finding a run"},
		{"one alone", []string{a}, exitUsage, "the folders of two runs"},
	} {
		test.run(t, "diff")
	}
}

func TestDiffOfNights(t *testing.T) {
	last, same, other, fewer := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	nic := func(r *report.Report) { r.Scenario = "added-nic" }
	for _, dir := range []string{last, same, other} {
		storeRun(t, dir, nil)
		storeRun(t, dir, nic)
	}
	storeRun(t, fewer, nic)
	storeRun(t, same, func(r *report.Report) {
		r.Ablated, r.Verdict, r.Variants[0].Verdict, r.Started = "fault", "inconclusive", "vacuous", r.Started.Add(time.Hour)
	})
	// Of each scenario the newest run counts.
	storeRun(t, other, func(r *report.Report) {
		r.Verdict, r.Variants[0].Verdict, r.Started, r.Owner = "fail", "missed", r.Started.Add(time.Hour), "@net"
	})
	for _, test := range []use{
		{"the same", []string{last, same}, exitExpected, "\nno verdict differs\n"},
		{"whom to tell", []string{last, other}, exitUnexpected, "\nverdicts differ: node-drain (@net)\n"},
		{"a verdict", []string{last, other}, exitUnexpected, "cilium-1.11.6  verdict  A reproduced, B missed"},
		{"a scenario less", []string{last, fewer}, exitUnexpected, "A only: node-drain 2026-01-02T03-04-05Z: pass"},
		{"a scenario more", []string{fewer, last}, exitExpected, "B only: node-drain 2026-01-02T03-04-05Z: pass"},
		{"nothing", []string{last, t.TempDir()}, exitUsage, "there is no report.json of a complete run in"},
	} {
		test.run(t, "diff")
	}
}
