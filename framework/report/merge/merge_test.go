package merge

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// shard stores a run that passes, of one variant, and returns it.
func shard(t *testing.T, output, variant, role string, change func(*report.Report)) Shard {
	t.Helper()
	expected := map[string]string{"affected": "reproduced", "fixed": "prevented"}[role]
	r := report.Report{
		Schema: report.Schema, Scenario: "node-drain", Verdict: "pass", Started: began, Half: "half", Relapse: "v1",
		Command: "relapse run node-drain --variant=" + variant, Machine: map[string]any{"cpus": 2.0},
		Images: map[string]string{"relapse.dev/node:1": "sha256:1", variant: "sha256:2"},
		Steps:  []report.Step{{Scope: "lab", Name: "lab is up", Began: began}},
		Variants: []report.Variant{{
			Name: variant, Role: role, Expected: expected, Verdict: expected, EvidenceDir: filepath.Join("evidence", variant),
		}},
		Timings: report.Timings{Images: 1, Lab: 2, Total: 3},
	}
	if change != nil {
		change(&r)
	}
	dir := must.Get(report.NewRun(output, r.Scenario, r.Started))(t)
	must.NoError(t, r.Write(dir))
	for name, text := range map[string]string{
		filepath.Join("evidence", variant, "01-log-tor1.txt"): variant,
		filepath.Join("evidence", "lab", "01-log-tor1.txt"):   "lab of " + variant,
		"junit.xml": `<testsuites tests="1" errors="0" failures="0" time="2"><testsuite name="` + variant + `" tests="1"></testsuite></testsuites>`,
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	return Shard{dir, r}
}

func TestWrite(t *testing.T) {
	for _, test := range []struct {
		name     string
		change   func(*report.Report) // of a second run of the scenario; nil: there is none
		variants []string
		second   bool // that one counts
		verdict  string
		says     []string
	}{
		{name: "one run", verdict: "pass"},
		{name: "one run, with its variant", variants: []string{"old"}, verdict: "pass"},
		{name: "one run, without another variant", variants: []string{"old", "new"}, verdict: "inconclusive", says: []string{"no shard has variant new"}},
		{name: "twice, the same", change: func(*report.Report) {}, verdict: "pass", says: []string{"it ran twice: pass in ONE, and pass in TWO, which is left out"}},
		{name: "twice, and another verdict", change: func(r *report.Report) { r.Verdict = "fail" }, second: true, verdict: "fail",
			says: []string{"it ran twice: fail in TWO, and pass in ONE, which is left out"}},
		{name: "a newer one", change: func(r *report.Report) { r.Started = began.Add(time.Hour) }, second: true, verdict: "pass",
			says: []string{"it ran twice: pass in TWO, and pass in ONE, which is left out"}},
		{name: "one that was killed", second: true, verdict: "inconclusive",
			change: func(r *report.Report) { r.Unfinished = &report.Unfinished{Steps: []string{"old: fault"}} },
			says:   []string{"TWO has not ended; running steps: old: fault", "it ran twice: pass in TWO, and pass in ONE, which is left out"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			input, out := t.TempDir(), t.TempDir()
			one := shard(t, filepath.Join(input, "1"), "old", "affected", nil)
			shards, counts := []Shard{one}, one
			if test.change != nil {
				shards = append(shards, shard(t, filepath.Join(input, "2"), "old", "affected", test.change))
			}
			if test.second {
				counts = shards[1]
			}
			dir, merged, err := Write(out, must.Get(ByScenario(shards))(t)[0], test.variants...)
			must.NoError(t, err)
			named := strings.NewReplacer(one.Dir, "ONE", shards[len(shards)-1].Dir, "TWO")
			must.Equal(t, "conflicts", test.says, each.Of(merged.Merged.Conflicts, named.Replace))
			if merged.Verdict != test.verdict || merged.Merged.Runs[0] != counts.Dir || len(merged.Merged.Runs) != len(shards) {
				t.Errorf("%s, of %q", merged.Verdict, merged.Merged.Runs)
			}
			must.Equal(t, "", merged.Merged, must.Get(report.Read(filepath.Join(dir, "report.json")))(t).Merged)
			for name, want := range map[string]string{
				"evidence/old/01-log-tor1.txt": "old", "evidence/lab/01-log-tor1.txt": "lab of old", "junit.xml": "<testsuites", "report.html": "node-drain",
				"../latest/report.json": "sha256:2",
			} {
				must.Contain(t, string(must.Read(t, filepath.Join(dir, name))), want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	shard(t, dir, "old", "affected", nil)
	newer := shard(t, dir, "new", "fixed", func(r *report.Report) { r.Started = began.Add(time.Hour) })
	other := shard(t, dir, "old", "affected", func(r *report.Report) { r.Scenario = "added-nic" })
	shards, older, empty, err := Find(dir, filepath.Join(dir, "lost"))
	if err != nil || len(empty) != 1 || older != 1 || len(shards) != 2 || shards[0].Dir != other.Dir || shards[1].Dir != newer.Dir {
		t.Errorf("%+v, %d older, %v", shards, older, err)
	}
	if parts, err := ByScenario(append(shards, newer)); err != nil || len(parts) != 2 || len(parts[1]) != 2 {
		t.Errorf("%+v, %v", parts, err)
	}
	ablated := shard(t, dir, "new", "fixed", func(r *report.Report) { r.Ablated = "fault" })
	must.Fail(t, must.Err(ByScenario([]Shard{newer, ablated})), `without "fault": they are not parts of one run`)
}
