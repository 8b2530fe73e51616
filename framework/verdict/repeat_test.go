package verdict

import (
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// repeated are runs of two variants that ended in these verdicts.
func repeated(verdicts map[string][]framework.Verdict) []report.Variant {
	began := time.Now()
	var all []*Judge
	for _, name := range []string{"a", "b"} {
		v := framework.Variant{Name: name, Role: framework.Affected, Script: func() framework.Script { return framework.Script{} }}
		for i, c := range Cases(v, Options{Repeat: len(verdicts[name])}) {
			if len(verdicts[name]) == 0 {
				break
			}
			j := NewJudge(c, &history.History{}, Setting{}, nil)
			j.faulted = began
			if verdicts[name][i] == framework.Reproduced {
				j.Result.Onset = new(began.Add(time.Duration(i+1) * time.Second))
			}
			j.Result.Verdict = string(verdicts[name][i])
			all = append(all, j)
		}
	}
	return MergeRepeats(all)
}

func TestMergeRepeats(t *testing.T) {
	merged := repeated(map[string][]framework.Verdict{
		"a": {framework.Reproduced, framework.Prevented, framework.Vacuous, framework.Reproduced},
		"b": {framework.Reproduced, framework.Reproduced},
	})
	if len(merged) != 2 {
		t.Fatalf("%d results, want one for each variant: %+v", len(merged), merged)
	}
	a, b := merged[0], merged[1]
	if all, judged := report.NewRate(2, 4), report.NewRate(2, 3); a.Repeats.Expected != all || *a.Repeats.OfJudged != judged {
		t.Errorf("a came in %+v of all and %+v of the judged, want %+v and %+v", a.Repeats.Expected, *a.Repeats.OfJudged, all, judged)
	}
	if !slices.Equal(a.Repeats.NotJudged, []int{3}) || b.Repeats.NotJudged != nil {
		t.Errorf("not judged: %v of a, %v of b; want the vacuous one", a.Repeats.NotJudged, b.Repeats.NotJudged)
	}
	// A repeat that is not as expected describes the variant.
	if a.Verdict != string(framework.Prevented) || a.EvidenceDir != "evidence/a/run-02" {
		t.Errorf("a is described by %s, %s", a.Verdict, a.EvidenceDir)
	}
	if want := report.NewRate(2, 2); b.Repeats.Expected != want || b.EvidenceDir != "evidence/b/run-02" {
		t.Errorf("b came in %+v and is described by %s", b.Repeats.Expected, b.EvidenceDir)
	}
	var onsets []int64
	for _, r := range a.Repeats.Runs {
		if r.OnsetMS != nil {
			onsets = append(onsets, *r.OnsetMS)
		}
	}
	if !slices.Equal(onsets, []int64{1000, 4000}) || len(a.Repeats.Runs) != 4 {
		t.Errorf("runs of a: %+v", a.Repeats.Runs)
	}
}

// Where nothing could be judged, that is none of all, and no rate of the judged.
func TestMergeRepeatsThatSayNothing(t *testing.T) {
	merged := repeated(map[string][]framework.Verdict{"a": {framework.Vacuous, framework.Unknown}})
	if got := merged[0].Repeats; got.Expected != report.NewRate(0, 2) || got.OfJudged != nil {
		t.Errorf("%+v", got)
	}
}

func TestRepeatsLeaveOutRemedies(t *testing.T) {
	v := framework.Variant{Name: "a", Script: func() framework.Script {
		return framework.Script{Precursors: make([]framework.Precursor, 1), Remedies: make([]framework.Remedy, 1)}
	}}
	all := Cases(v, Options{Repeat: 20})
	if c := all[2]; len(all) != 20 || c.Label != "a 3/20" || c.Number != 2 || c.Script.Remedies != nil || c.Script.Precursors != nil {
		t.Errorf("%d, %+v", len(all), c)
	}
}

// A fixed variant survives as many trials as luck hardly explains by the upper bound of the
// rate, of the same load and accelerator, and as the slowest affected one has needed.
func TestTrialsDue(t *testing.T) {
	occurred := func(load string, rounds, count int) framework.Outcome {
		return framework.Outcome{Load: load, Trials: rounds, Occurred: true, Count: count}
	}
	for _, test := range []struct {
		name   string
		rates  framework.Rates
		beside []framework.Outcome
		want   int
	}{
		{"it took effect in each of many at once", framework.Rates{"uml": {occurred("heavy", 1, 400)}}, nil, 2},
		{"it took effect in each of few at once", framework.Rates{"uml": {occurred("heavy", 1, 2)}}, nil, framework.MaxTrials},
		{"it took effect in each of twenty at once", framework.Rates{"uml": {occurred("heavy", 1, 20)}}, nil, 3},
		{"one beside it was slow", framework.Rates{"uml": {occurred("heavy", 1, 400)}}, []framework.Outcome{occurred("", 4, 1)}, 4},
		{"many under another load", framework.Rates{"uml": {occurred("light", 1, 400)}}, nil, framework.MaxTrials},
		{"many with another accelerator", framework.Rates{"kvm": {occurred("heavy", 1, 400)}}, nil, framework.MaxTrials},
	} {
		v := framework.Variant{Role: framework.Fixed, Script: func() framework.Script {
			return framework.Script{Trials: &framework.Trials{Unit: "tick", Load: "heavy", Rates: test.rates}}
		}}
		j := NewJudge(newCase(v, Options{}), &history.History{}, Setting{Accelerator: "uml"}, nil)
		must.Equal(t, test.name, test.want, j.TrialsDue(test.beside, false))
	}
}

// A variant without an expectation may need more trials than others.
func TestTrialsDueWithoutExpectation(t *testing.T) {
	for most, want := range map[int]int{0: framework.MaxTrials, 7: 7} {
		v := framework.Variant{Role: framework.Unclassified, Script: func() framework.Script {
			return framework.Script{Trials: &framework.Trials{Unit: "tick", Most: most}}
		}}
		j := NewJudge(newCase(v, Options{}), &history.History{}, Setting{}, nil)
		must.Equal(t, most, want, j.TrialsDue(nil, false))
	}
}
