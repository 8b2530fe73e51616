package engine

import (
	"path/filepath"
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// switchOff takes a part out of a variant's run.
func (v *variantRun) switchOff(p Part) {
	v.ablate = p
	v.result.Ablated = string(p)
	switch p {
	case AblateFault:
		v.script.Forms = nil // they are faults, too: the fault itself is what must be missed
	case AblateRemedy:
		// One that does not help changes nothing by being left out.
		v.script.Remedies = slices.DeleteFunc(v.script.Remedies, func(r framework.Remedy) bool { return !r.Helps })
	}
}

// ablations are the runs of a variant that show what each part is good for:
// without it, the verdict must be another one.
func ablations(e *Execution, v framework.Variant) []*variantRun {
	without := func(p Part, becomes framework.Verdict) *variantRun {
		run := newVariantRun(e, v)
		run.switchOff(p)
		run.mustChange = true
		run.label = v.Name + " without " + string(p)
		run.result.Expected = string(becomes)
		run.result.EvidenceDir = filepath.Join("evidence", v.Name, "without-"+string(p))
		return run
	}
	runs := []*variantRun{without(AblateFault, framework.Vacuous)}
	if v.Role != framework.Affected {
		return runs // nothing is to be detected, and nothing to be mended
	}
	runs = append(runs, without(AblateDetector, framework.Missed))
	// The incident is there, and no remedy mends it.
	if remedies := without(AblateRemedy, framework.Reproduced); len(remedies.script.Remedies) > 0 {
		runs = append(runs, remedies)
	}
	return runs
}
