package verdict

import (
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// MergeRepeats merges the results of each variant's runs. A variant's runs follow each other.
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
		repeat := report.Repeat{
			Scope: run.Label, Verdict: result.Verdict, Reasons: result.Reasons, ElapsedMS: result.ElapsedMS, Race: result.Race,
		}
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

// TrialsDue is how many trials the case must survive: MaxTrials if affected, Trials.Convincing without an expectation.
// Otherwise enough to convince, and as many as the slowest affected variant has needed, in the rates or in this run.
// affected are the outcomes in this run, and unknown is set if an affected variant is still at its trials.
func (j *Judge) TrialsDue(affected []framework.Outcome, unknown bool) int {
	trials := j.Script.Trials
	switch {
	case trials == nil:
		return 0
	case j.Variant.Role == framework.Affected:
		return framework.MaxTrials
	case !j.Classified():
		return trials.Convincing(j.Accelerator)
	case unknown:
		return framework.MaxTrials
	}
	outcomes := trials.On(j.Accelerator)
	return framework.TrialsRequired(max(
		framework.TrialsToConvince(outcomes...), framework.TrialsNeeded(outcomes...), framework.TrialsNeeded(affected...),
	))
}
