package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// night runs .ci/night over shards in a folder of its own, which it returns with the
// exit status. Planned are the names of the scenarios.
func night(t *testing.T, planned string, shards, earlier string) (dir string, status int) {
	t.Helper()
	script := must.Get(filepath.Abs("../../.ci/night"))(t)
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), script, planned, shards, earlier)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asProgram+"=1", "RELAPSE="+os.Args[0])
	got := end(t, cmd)
	t.Logf("%s%s", got.stdout, got.stderr)
	return dir, got.status
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must.Read(t, path))
}

// TestNights is two nights of two shards. In the second night a verdict changes.
func TestNights(t *testing.T) {
	must.Get(exec.LookPath("bash"))(t)
	drain := func(r *report.Report) {
		r.Variants = append(r.Variants, report.Variant{Name: "cilium-1.12.0", Role: "fixed", Form: "slice", Expected: "prevented", Verdict: "prevented"})
	}
	nic := func(r *report.Report) {
		r.Scenario, r.Owner = "added-nic", "@net"
		r.Variants = []report.Variant{
			{Name: "first-found", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "reproduced"},
			{Name: "first-found-restarted", Role: "affected", Form: "whole", Expected: "reproduced", Verdict: "reproduced"},
			{Name: "kubernetes-internal-ip", Role: "fixed", Form: "whole", Expected: "prevented", Verdict: "prevented"},
		}
	}
	first, second := t.TempDir(), t.TempDir()
	storeRun(t, filepath.Join(first, "shard-1"), drain)
	storeRun(t, filepath.Join(first, "shard-2"), nic)
	before, status := night(t, "node-drain,added-nic", first, "none")
	must.Equal(t, "exit status", exitExpected, status)
	must.Fail(t, must.Err(os.Stat(filepath.Join(before, "changed.txt"))), "no such file")
	for _, name := range []string{"pages/node-drain.html", "pages/added-nic.html", "night/index.html", "night/junit.xml"} {
		read(t, filepath.Join(before, name))
	}
	history := filepath.Join(before, "history")
	read(t, filepath.Join(history, "node-drain", "2026-01-02T03-04-05Z", "report.json"))

	tomorrow := func(r *report.Report) { r.Started = r.Started.Add(24 * time.Hour) }
	storeRun(t, filepath.Join(second, "shard-1"), func(r *report.Report) { drain(r); tomorrow(r) })
	storeRun(t, filepath.Join(second, "shard-2"), func(r *report.Report) {
		nic(r)
		tomorrow(r)
		r.Verdict, r.Variants[0].Verdict = "inconclusive", "unknown"
	})
	after, status := night(t, "node-drain,added-nic", second, history)
	must.Equal(t, "exit status", exitInconclusive, status)
	changed := read(t, filepath.Join(after, "changed.txt"))
	must.Contain(t, changed+"end", "\nverdicts differ: added-nic (@net)\nend", "verdict  A reproduced, B unknown")
	summary := read(t, filepath.Join(after, "night", "summary.md"))
	must.Contain(t, summary, "## relapse: 1 of 2 scenarios passed", "\nverdicts differ: added-nic (@net)\n")
	must.Equal(t, "runs", 4, len(must.Get(filepath.Glob(filepath.Join(after, "history", "*", "*", "report.json")))(t)))
	var suites reporters.JUnitTestSuites
	must.NoError(t, xml.Unmarshal([]byte(read(t, filepath.Join(after, "night", "junit.xml"))), &suites))
	must.Equal(t, "errors, failures, disabled", [...]int{1, 0, 0}, [...]int{suites.Errors, suites.Failures, suites.Disabled})

	// A shard whose machine was lost.
	os.RemoveAll(filepath.Join(second, "shard-2"))
	lost, status := night(t, "node-drain,added-nic", second, history)
	must.Equal(t, "exit status", exitInconclusive, status)
	must.Contain(t, read(t, filepath.Join(lost, "night", "summary.md")), "added-nic: `no shard has a report of it`")
	must.Contain(t, read(t, filepath.Join(lost, "changed.txt"))+"end", "\nverdicts differ: added-nic (@net)\nend")
	// A shard whose second scenario has left no report: both shards have one.
	third := t.TempDir()
	storeRun(t, filepath.Join(third, "shard-1"), drain)
	storeRun(t, filepath.Join(third, "shard-2"), nic)
	half, status := night(t, "node-drain,added-nic,unpinned-image", third, "none")
	must.Equal(t, "exit status", exitInconclusive, status)
	summary = read(t, filepath.Join(half, "night", "summary.md"))
	must.Contain(t, summary, "## relapse: 2 of 3 scenarios passed", "unpinned-image: `no shard has a report of it`")
	none, status := night(t, "node-drain,added-nic", t.TempDir(), history)
	must.Equal(t, "exit status", exitInconclusive, status)
	must.Contain(t, read(t, filepath.Join(none, "night", "summary.md")), "## relapse: 0 of 2 scenarios passed")
}
