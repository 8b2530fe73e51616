package verdict

import (
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// MergeRepeats makes one result of those of each variant. Judges are in the order of
// runs, those of one variant side by side.
func MergeRepeats(all []*Judge) []report.Variant {
	var merged []report.Variant
	for i := 0; i < len(all); {
		first := i
		for i < len(all) && all[i].Variant.Name == all[first].Variant.Name {
			i++
		}
		merged = append(merged, mergeRepeat(all[first:i]))
	}
	return merged
}

func mergeRepeat(runs []*Judge) report.Variant {
	one := runs[len(runs)-1].Result
	var repeats report.Repeats
	expected := 0
	for i, run := range runs {
		result := run.Result
		repeat := report.Repeat{Scope: run.Label, Verdict: result.Verdict, Reasons: result.Reasons, ElapsedMS: result.ElapsedMS, Race: result.Race}
		if result.Onset != nil {
			repeat.OnsetMS = new(result.Onset.Sub(run.faulted).Milliseconds())
		}
		repeats.Runs = append(repeats.Runs, repeat)
		if result.Verdict == string(framework.Vacuous) || result.Verdict == string(framework.Unknown) {
			repeats.NotJudged = append(repeats.NotJudged, i+1)
		}
		if result.Verdict == result.Expected {
			expected++
		}
		if result.Verdict != result.Expected && one.Verdict == one.Expected {
			one = result
		}
	}
	repeats.Expected = report.NewRate(expected, len(runs))
	if judged := len(runs) - len(repeats.NotJudged); judged > 0 {
		repeats.OfJudged = new(report.NewRate(expected, judged))
	}
	one.Repeats = &repeats
	return one
}

// TrialsDue is how many trials the case must stand: an affected variant as many as any,
// one that is not classified as many as convince, another as many as the slowest affected
// one has needed, on record or in this run. Beside are the outcomes of the affected ones
// in this run; unknown is set where one of them is still at its trials, so that as many
// as any may be needed.
func (j *Judge) TrialsDue(beside []framework.Outcome, unknown bool) int {
	race := j.Script.Trials
	switch {
	case race == nil:
		return 0
	case j.Variant.Role == framework.Affected:
		return framework.MaxTrials
	case !j.Classified():
		return framework.TrialsRequired(framework.TrialsToConvince(race.Rates[j.Accelerator]...))
	case unknown:
		return framework.MaxTrials
	}
	return framework.TrialsRequired(max(framework.TrialsNeeded(race.Rates[j.Accelerator]...), framework.TrialsNeeded(beside...)))
}
