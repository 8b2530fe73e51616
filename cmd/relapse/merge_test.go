package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// What was planned and has left no report is inconclusive, whatever else passed.
func TestMergeExpected(t *testing.T) {
	there, half, empty := t.TempDir(), t.TempDir(), t.TempDir()
	storeRun(t, there, func(r *report.Report) { r.NotRun = []report.NotRun{{Name: "cilium-1.12.0", Reason: "no kernel"}} })
	storeRun(t, half, nil)
	for _, test := range []use{
		{"all", []string{"--expect=node-drain", there}, exitExpected, "node-drain: PASS"},
		{"a variant is missing", []string{"--expect=node-drain", half}, exitInconclusive, "no shard has variant cilium-1.12.0"},
		{"a variant is missing, and nothing was expected", []string{half}, exitExpected, "node-drain: PASS"},
		{"one is missing", []string{"--expect=node-drain,added-nic", there}, exitInconclusive, "\nadded-nic: INCONCLUSIVE, no shard has a report of it\n"},
		{"a shard without a report", []string{"--expect=node-drain,added-nic", there, empty}, exitInconclusive, "no report in " + empty},
		{"a shard that was lost", []string{"--expect=node-drain,added-nic", there, filepath.Join(empty, "shard-2")}, exitInconclusive, "no report in " + empty + "/shard-2"},
		{"no report at all", []string{"--expect=node-drain", empty}, exitInconclusive, "\nnode-drain: INCONCLUSIVE, no shard has a report of it\n"},
		{"nothing was expected", []string{there, empty}, exitUsage, "there is no report.json in " + empty},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "merged")
			printed(t, test.status, test.says, append([]string{"merge", "--output", folder}, test.args...)...)
			if test.status != exitInconclusive {
				return
			}
			for _, name := range []string{"junit.xml", "summary.md"} {
				must.Contain(t, read(t, filepath.Join(folder, name)), "no shard has ")
			}
		})
	}
}

func TestMerge(t *testing.T) {
	missed := func(r *report.Report) { r.Verdict, r.Variants[0].Verdict = "inconclusive", "unknown" }
	for _, test := range []struct {
		name   string
		shards []func(*report.Report)
		status int
		says   string
	}{
		{"twice", []func(*report.Report){nil, nil}, exitExpected, "conflict: it ran twice: pass in "},
		{"two verdicts", []func(*report.Report){nil, missed}, exitInconclusive, "node-drain: INCONCLUSIVE"},
		{"one without its fault", []func(*report.Report){nil, func(r *report.Report) { r.Ablated = "fault" }}, exitUsage, "they are not parts of one run"},
		{"nothing", nil, exitUsage, "there is no report.json in"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "merged")
			args := []string{"merge", "--output", folder}
			for _, change := range test.shards {
				dir := t.TempDir()
				storeRun(t, dir, change)
				args = append(args, dir)
			}
			if test.shards == nil {
				args = append(args, t.TempDir())
			}
			printed(t, test.status, test.says, args...)
			for _, name := range []string{"index.html", "junit.xml", "summary.md"} {
				_, err := os.Stat(filepath.Join(folder, name))
				must.Equal(t, name, test.status != exitUsage, err == nil)
			}
		})
	}
}
