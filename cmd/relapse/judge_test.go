package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// That a run is judged as it was is tested in package engine.
func TestJudgeRefuses(t *testing.T) {
	dir := t.TempDir()
	evidence := func(r *report.Report) { r.Variants[0].EvidenceDir = "evidence/cilium-1.11.6" }
	older, garbled := storeRun(t, dir, evidence), storeRun(t, dir, evidence)
	must.NoError(t, os.MkdirAll(filepath.Join(older, "evidence", "cilium-1.11.6"), 0o755))
	must.Write(t, filepath.Join(garbled, "evidence", "cilium-1.11.6", "record.jsonl.zst"), "garbled")
	unknown := storeRun(t, dir, func(r *report.Report) { r.Scenario = "node-drains" })
	for _, test := range []use{
		{"older evidence", []string{older}, exitInconclusive, "there is no evidence/cilium-1.11.6/record.jsonl.zst: the run is of before runs kept what judging takes"},
		{"older evidence, and the same again", []string{older, older}, exitInconclusive, "there is no evidence"},
		{"a garbled record", []string{garbled}, exitUsage, "reading the record"},
		{"no such scenario", []string{unknown}, exitUsage, `no scenario "node-drains"; nearest is "node-drain"`},
		{"no run", []string{dir}, exitUsage, "no such file"},
		{"nothing", nil, exitUsage, "judge needs the folder of a run"},
	} {
		test.run(t, "judge")
	}
}
