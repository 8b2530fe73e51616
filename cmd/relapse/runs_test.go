package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/must"
)

// storeRun stores the report of a run that passed, after change has changed it, and returns the folder of the run.
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

func output(t *testing.T, args ...string) (status int, out, complained string) {
	t.Helper()
	var text bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&text)
	err := cmd.ExecuteContext(t.Context())
	return exitStatus(t.Context(), err), text.String(), complaint(t.Context(), err)
}

type use struct {
	name   string
	args   []string
	status int
	says   string
}

func (u use) run(t *testing.T, command ...string) {
	t.Run(u.name, func(t *testing.T) { printed(t, u.status, u.says, append(command, u.args...)...) })
}

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

// The contents of archives are tested in package archive.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	run, replaced := storeRun(t, dir, nil), storeRun(t, dir, nil)
	there := must.Write(t, filepath.Join(dir, "there.tar.gz"), "")
	must.Write(t, filepath.Join(replaced, report.ManifestName),
		`{"schema":"relapse.archive/v1","files":[],"redaction":{"addresses":1,"names":1}}`)
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []use{
		{"as it is", []string{"archive", run, "-o", file("a.tar.gz")}, exitExpected, "a.tar.gz: 1 files, "},
		{"with other names", []string{"archive", run, "--redact", "-o", file("b.tar.gz")}, exitExpected, "replaced "},
		{"too small", []string{"archive", run, "--max-size", "1B", "-o", file("c.tar.gz")}, exitUsage, "--max-size: report.json, report.html and the manifest alone take"},
		{"no size", []string{"archive", run, "--max-size", "small"}, exitUsage, `--max-size: "small" is not a size`},
		{"over another file", []string{"archive", run, "-o", there}, exitUsage, "exists already: choose another file with -o"},
		{"into no folder", []string{"archive", run, "-o", file("no/a.tar.gz")}, exitUsage, "no such file"},
		{"no run", []string{"archive", file("none")}, exitUsage, "finding a run"},
		{"nothing", []string{"archive"}, exitUsage, "takes one argument, the folder of a run"},
		{"replaced already", []string{"archive", replaced, "--redact"}, exitUsage, "addresses and names are replaced already"},
		{"judged", []string{"judge", replaced}, exitInconclusive, "its addresses and names were replaced, which cannot be undone"},
	} {
		test.run(t)
	}
}

// Package engine tests that judging a run again leads to the same verdict.
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

// A qualification is judged again by the record of its upgrade. Package upgrade tests that the verdict is the same.
func TestJudgeQualification(t *testing.T) {
	// store stores a qualification whose upgrade was interrupted before it began.
	store := func(change func(*qualify.Qualification)) string {
		dir := t.TempDir()
		record := filepath.Join(dir, qualify.PartUpgrade)
		var h history.History
		h.Create(record, time.Now(), history.Begin{
			Variant: "kube-router 1.5.1 to 2.1.0", Versions: map[string]string{"kube-router.from": "1.5.1", "kube-router.to": "2.1.0"},
		})
		must.NoError(t, h.Close())
		u := must.Get(upgrade.Of("kube-router", "1.5.1", "2.1.0", upgrade.Settings{}))(t)
		m := must.Get(upgrade.Stored(record, u, "1.5.1", "2.1.0"))(t)
		q := qualify.Judge(qualify.Inputs{
			Component: "kube-router", From: "1.5.1", To: "2.1.0", Configuration: qualify.Configuration{NotAsked: "none was given"},
			Upgrade: qualify.Upgrade{Measures: &m},
		}, qualify.Thresholds{MaxGapMS: 1000}, "again")
		change(&q)
		must.NoError(t, q.Write(dir))
		return dir
	}
	same := store(func(*qualify.Qualification) {})
	changed := store(func(q *qualify.Qualification) { q.Verdict, q.Rows[len(q.Rows)-1].State = qualify.Go, qualify.Fine })
	none, other := store(func(*qualify.Qualification) {}), store(func(q *qualify.Qualification) { q.Inputs.To = "2.1.1" })
	must.NoError(t, os.Remove(filepath.Join(none, qualify.PartUpgrade, history.FileName)))
	for _, test := range []use{
		{"as stored", []string{same}, 0,
			"qualify kube-router 1.5.1 to 2.1.0: stored UNKNOWN, judged now UNKNOWN\nthe verdict and all rows are as stored"},
		{"another verdict", []string{changed}, exitUnexpected,
			"stored GO, judged now UNKNOWN\n  upgrade, rollout: stored ok, judged now UNKNOWN: the upgrade did not run"},
		{"no record", []string{none}, exitInconclusive, "reading the record of the upgrade"},
		{"the record of another upgrade", []string{other}, exitUsage, "is of kube-router 1.5.1 to 2.1.0, not of kube-router 1.5.1 to 2.1.1"},
	} {
		test.run(t, "judge")
	}
}

// A planned scenario without a report makes the result inconclusive, whatever else passed.
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

func TestPage(t *testing.T) {
	dir := t.TempDir()
	for n, run := range []string{"2026-01-02T03-04-00Z", "2026-01-02T04-04-00Z"} {
		r := report.Report{Schema: report.Schema, Scenario: "node-drain", Run: run, Verdict: "pass", Started: time.Date(2026, 1, 2, 3+n, 4, 0, 0, time.UTC)}
		must.NoError(t, r.Write(filepath.Join(dir, "node-drain", run)))
	}
	one := filepath.Join("node-drain", "2026-01-02T03-04-00Z")
	for _, test := range []struct {
		name, arg string
		wrote     []string
	}{
		{"one run", one, []string{filepath.Join(one, "report.html")}},
		{"all of them", "", []string{filepath.Join(one, "report.html"), "node-drain/2026-01-02T04-04-00Z/report.html", "index.html"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := ""
			_, out, complained := output(t, "page", filepath.Join(dir, test.arg))
			for _, name := range test.wrote {
				want += filepath.Join(dir, name) + "\n"
				must.Get(os.Stat(filepath.Join(dir, name)))(t)
			}
			must.Equal(t, "output", want, out+complained)
		})
	}
}

func rendered(r report.Report) string {
	var out strings.Builder
	r.Run, r.Timings = "2026-01-02T03-04-00Z", report.Timings{Images: 120, Lab: 26000, Total: 118000}
	printReport(&out, r, "reports")
	return out.String()
}

// The reports in testdata have most kinds of lines, a version without an expectation, and repeats.
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
