package verdict

import (
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
	must.Equal(t, "results, one for each variant", 2, len(merged))
	a, b := merged[0], merged[1]
	rates := [...]report.Rate{report.NewRate(2, 4), report.NewRate(2, 3), report.NewRate(2, 2)}
	must.Equal(t, "of all, of the judged, of b", rates, [...]report.Rate{a.Repeats.Expected, *a.Repeats.OfJudged, b.Repeats.Expected})
	must.Equal(t, "the vacuous one is not judged", [...][]int{{3}, nil}, [...][]int{a.Repeats.NotJudged, b.Repeats.NotJudged})
	// A repeat that is not as expected describes the variant.
	must.Equal(t, "a is described by", [...]string{"prevented", "evidence/a/run-02"}, [...]string{a.Verdict, a.EvidenceDir})
	must.Equal(t, "b is described by", "evidence/b/run-02", b.EvidenceDir)
	var onsets []int64
	for _, r := range a.Repeats.Runs {
		if r.OnsetMS != nil {
			onsets = append(onsets, *r.OnsetMS)
		}
	}
	must.Equal(t, a.Repeats.Runs, [...]any{[]int64{1000, 4000}, 4}, [...]any{onsets, len(a.Repeats.Runs)})
}

// If no run could be judged, there is no rate of the judged runs.
func TestMergeRepeatsThatSayNothing(t *testing.T) {
	merged := repeated(map[string][]framework.Verdict{"a": {framework.Vacuous, framework.Unknown}})
	got := merged[0].Repeats
	must.Equal(t, got, [...]any{report.NewRate(0, 2), true}, [...]any{got.Expected, got.OfJudged == nil})
}

func TestRepeatsLeaveOutRemedies(t *testing.T) {
	v := framework.Variant{Name: "a", Script: func() framework.Script {
		return framework.Script{Precursors: make([]framework.Precursor, 1), Remedies: make([]framework.Remedy, 1)}
	}}
	all := Cases(v, Options{Repeat: 20})
	c := all[2]
	got := [...]any{len(all), c.Label, c.Number, len(c.Script.Remedies) + len(c.Script.Precursors)}
	must.Equal(t, "", [...]any{20, "a 3/20", 2, 0}, got)
}

// A fixed variant must survive so many trials that chance hardly explains it by the bound of the rate with the
// same load and accelerator, and as many trials as the slowest affected variant has needed.
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
