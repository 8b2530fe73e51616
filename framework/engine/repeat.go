package engine

import (
	"fmt"
	"path/filepath"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// isRepeat makes a run one of several of the same variant.
func (v *variantRun) isRepeat(number, total int) {
	v.label = fmt.Sprintf("%s %d/%d", v.variant.Name, number, total)
	v.result.EvidenceDir = filepath.Join("evidence", v.variant.Name, fmt.Sprintf("run-%02d", number))
	v.isBrief()
}

// isBrief leaves out of a run what takes the time of several runs.
func (v *variantRun) isBrief() { v.script.Forms, v.script.Remedies = nil, nil }

// mergeRepeats makes one result of those of each variant. Results are in the
// order of runs, those of one variant side by side.
func mergeRepeats(runs []*variantRun, results []report.Variant) []report.Variant {
	var merged []report.Variant
	for i := 0; i < len(results); {
		first := i
		for i < len(results) && results[i].Name == results[first].Name {
			i++
		}
		merged = append(merged, mergeRepeat(runs[first:i], results[first:i]))
	}
	return merged
}

func mergeRepeat(runs []*variantRun, results []report.Variant) report.Variant {
	one := results[len(results)-1]
	var repeats report.Repeats
	expected := 0
	for i, result := range results {
		repeat := report.Repeat{Verdict: result.Verdict, Reasons: result.Reasons, ElapsedMS: result.ElapsedMS, Race: result.Race}
		if result.Onset != nil {
			ms := result.Onset.Sub(runs[i].faulted).Milliseconds()
			repeat.OnsetMS = &ms
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
	repeats.Expected = report.NewRate(expected, len(results))
	if judged := len(results) - len(repeats.NotJudged); judged > 0 {
		repeats.OfJudged = new(report.NewRate(expected, judged))
	}
	one.Repeats = &repeats
	return one
}
