package engine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/must"
)

// judgesTheSame asserts that a run which is judged again from its evidence comes to the same.
func judgesTheSame(t *testing.T, s framework.Scenario, e *Execution) {
	t.Helper()
	stored, there := e.Report()
	if !there || e.Dir() == "" {
		return
	}
	again, err := judgeAgain(e.Dir(), s)
	var not *verdict.NotJudgeableError
	if errors.As(err, &not) && allUnbegun(stored) {
		return
	}
	must.NoError(t, err)
	if d := again.Differences; !again.Same() {
		for _, v := range again.Report.Variants {
			t.Logf("%s: %q %+v", v.Name, v.Reasons, v.Remedies)
		}
		t.Errorf("judged again it is %s, and was %s:\nverdicts %+v\nfindings %+v\nlooks\n%snot on record %q",
			again.Report.Verdict, stored.Verdict, d.Verdicts, d.Findings, again, again.NotOnRecord)
	}
}

// A single run of --repeat that is judged differently is a difference, also where the verdict stays the same.
func TestJudgesEachRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		p := play(t, w, s, &fakeLabs{}, Options{Repeat: 3})
		stored, _ := p.Report()
		run := &stored.Variants[0].Repeats.Runs[1]
		was := run.Verdict
		run.Verdict = string(framework.Missed)
		must.NoError(t, stored.Write(p.Dir()))
		again := must.Get(judgeAgain(p.Dir(), s))(t)
		want := []compare.Difference{{Variant: run.Scope, What: "verdict", A: string(framework.Missed), B: was}}
		must.Equal(t, "verdicts", want, again.Differences.Verdicts)
		must.Equal(t, "judged the same", false, again.Same())
	})
}

func allUnbegun(r report.Report) bool {
	return !slices.ContainsFunc(r.Variants, func(v report.Variant) bool { return v.Began != nil })
}

func judgeAgain(dir string, s framework.Scenario) (verdict.Judgement, error) {
	stored, err := report.Read(filepath.Join(dir, "report.json"))
	if err != nil {
		return verdict.Judgement{}, err
	}
	prepared, err := verdict.Open(dir, stored)
	if err != nil {
		return verdict.Judgement{}, err
	}
	return prepared.Judge(s)
}

func recordMeetsSchema(t *testing.T, path string) {
	t.Helper()
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	decoder := must.Get(zstd.NewReader(file, zstd.WithDecoderConcurrency(1)))(t)
	defer decoder.Close()
	lines := bufio.NewScanner(decoder)
	lines.Buffer(nil, 10<<20)
	n := 0
	for ; lines.Scan(); n++ {
		must.Equal(t, lines.Text(), nil, schema.Validate("record", lines.Bytes()))
	}
	must.NoError(t, lines.Err())
	must.Equal(t, "there are lines", true, n > 0)
}

type mute struct{}

func (mute) Name() string                                               { return "told" }
func (mute) Reads() []snapshot.Source                                   { return []snapshot.Source{snapshot.Nodes} }
func (mute) Detect([]snapshot.Snapshot, *detect.Index) []detect.Finding { return nil }

func scripted(s framework.Scenario, change func(*framework.Script)) framework.Scenario {
	var variants []framework.Variant
	for _, v := range s.Variants {
		script := v.Script
		v.Script = func() framework.Script {
			made := script()
			change(&made)
			return made
		}
		variants = append(variants, v)
	}
	s.Variants = variants
	return s
}

// Today's detectors and script decide, not the results of the run.
func TestJudgeWithOtherScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		run := play(t, w, s, &fakeLabs{}, Options{})
		recordMeetsSchema(t, filepath.Join(run.Dir(), "evidence", "old", history.FileName))
		expecting := func(edit func(*framework.Finding)) func(*framework.Script) {
			return func(s *framework.Script) {
				for i := range s.Expected { // the affected variant's
					edit(&s.Expected[i])
				}
			}
		}
		for _, test := range []struct {
			name    string
			change  func(*framework.Script)
			verdict string // of the affected variant
			says    string
		}{
			{"the detector is switched off", func(s *framework.Script) { s.Detectors = []detect.Detector{mute{}} }, "missed", "polls find something else, the first at"},
			{"another kind is expected", expecting(func(f *framework.Finding) { f.Kind = "other" }), "missed", ""},
			{"another owner", expecting(func(f *framework.Finding) { f.Owner = "b" }), "missed", ""},
			{"another announcer", expecting(func(f *framework.Finding) { f.Announcer = "b" }), "missed", ""},
			{"a router more", expecting(func(f *framework.Finding) { f.Routers = []string{"tor1", "tor2", "tor3"} }), "missed", ""},
			{"more probes must lose packets", func(s *framework.Script) { s.Impacted = s.Probes[:2] }, "unknown", ""},
		} {
			again := must.Get(judgeAgain(run.Dir(), scripted(s, test.change)))(t)
			must.Equal(t, test.name+": the same", false, again.Same())
			must.Contain(t, again.String(), test.says)
			old, fixed := again.Report.Variants[0], again.Report.Variants[1]
			must.Equal(t, test.name, [...]string{test.verdict, "prevented"}, [...]string{old.Verdict, fixed.Verdict})
		}
	})
}

// A killed run's record has everything until the kill.
func TestJudgeAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		run := play(t, w, s, &fakeLabs{}, Options{Variants: []string{"old"}})
		record := filepath.Join(run.Dir(), "evidence", "old", history.FileName)
		whole := must.Read(t, record)
		verdicts := map[string]int{}
		for part := 1; part <= 20; part++ {
			must.NoError(t, os.WriteFile(record, whole[:len(whole)*part/20], 0o644))
			again := must.Get(judgeAgain(run.Dir(), s))(t)
			v := again.Report.Variants[0]
			verdicts[v.Verdict]++
			must.Equal(t, fmt.Sprint(part, " of 20 passes"), false, part < 20 && again.Report.Verdict == "pass")
			if v.Verdict == "unknown" {
				must.Contain(t, strings.Join(v.Reasons, "; "), "the stored run has no record of it")
			}
		}
		must.Equal(t, verdicts, 20, verdicts["unknown"]+verdicts["reproduced"])
		must.Equal(t, verdicts, 2, len(verdicts))
	})
}

func TestNotJudgeable(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name string
		v    report.Variant
		says string
	}{
		{"older evidence", report.Variant{Name: "old", Began: &began, EvidenceDir: "evidence/old"}, "there is no evidence/old/record.jsonl.zst"},
		{"nothing ran", report.Variant{Name: "old", EvidenceDir: "evidence/old"}, "no variant has run"},
	} {
		dir := t.TempDir()
		if test.v.Began != nil {
			must.NoError(t, os.MkdirAll(filepath.Join(dir, test.v.EvidenceDir), 0o755))
		}
		_, err := verdict.Open(dir, report.Report{Variants: []report.Variant{test.v}})
		must.Fail(t, err, test.says)
		must.Equal(t, test.name, true, errors.As(err, new(*verdict.NotJudgeableError)))
	}
	above := report.Report{Variants: []report.Variant{{Name: "old", EvidenceDir: "../old"}}}
	must.Fail(t, must.Err(verdict.Open(t.TempDir(), above)), "not below it")
}
