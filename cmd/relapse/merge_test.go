package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

func TestMerge(t *testing.T) {
	fixed := func(r *report.Report) {
		r.Variants[0].Name, r.Variants[0].Role, r.Variants[0].Expected, r.Variants[0].Verdict = "cilium-1.12.0", "fixed", "prevented", "prevented"
	}
	missed := func(r *report.Report) { r.Verdict, r.Variants[0].Verdict = "inconclusive", "unknown" }
	for _, test := range []struct {
		name   string
		shards []func(*report.Report)
		status int
		says   string
	}{
		{"two halves", []func(*report.Report){nil, fixed}, exitExpected, "node-drain: PASS\n"},
		{"the same half twice", []func(*report.Report){nil, nil}, exitExpected, "conflict: cilium-1.11.6 ran twice"},
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
			status, out, complained := output(t, args...)
			if status != test.status || !strings.Contains(out+complained, test.says) {
				t.Errorf("exit status %d, want %d with %q:\n%s%s", status, test.status, test.says, out, complained)
			}
			for _, name := range []string{"index.html", "junit.xml", "summary.md", "metrics.prom"} {
				_, err := os.Stat(filepath.Join(folder, name))
				if there := err == nil; there != (test.status != exitUsage) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
