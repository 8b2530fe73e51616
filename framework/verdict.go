package framework

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is what became of a variant.
type Verdict string

// Verdicts of a variant.
const (
	// Reproduced: users were hurt, and a detector said why.
	Reproduced Verdict = "reproduced"
	// Prevented: the same fault hurt nobody, and no detector raised an alarm.
	Prevented Verdict = "prevented"
	// Missed: users were hurt, and no detector said a word.
	Missed Verdict = "missed"
	// Vacuous: the fault never took hold, or the baseline was bad: the run
	// proves nothing.
	Vacuous Verdict = "vacuous"
	// Unknown: the run broke, or what it saw fits no other verdict.
	Unknown Verdict = "unknown"
)

// RunVerdict is what became of a whole run.
type RunVerdict string

// Verdicts of a run.
const (
	Pass         RunVerdict = "pass"         // all as expected
	Fail         RunVerdict = "fail"         // something was not as expected
	Inconclusive RunVerdict = "inconclusive" // something could not be judged
)

// observation is what a verdict is made of.
type observation struct {
	broken   error    // the run broke before it could be judged
	baseline string   // why the baseline was bad; empty if it was good
	held     string   // why the fault did not take hold; empty if it did
	expected []string // probes that the incident hurts
	hurt     []string // probes that were hurt, of those that are judged
	active   int      // findings of something broken, after the fault
}

// judge turns what was seen into a verdict, and says why.
func judge(o observation) (Verdict, string) {
	var hurt, unhurt []string
	for _, name := range o.expected {
		if slices.Contains(o.hurt, name) {
			hurt = append(hurt, name)
		} else {
			unhurt = append(unhurt, name)
		}
	}
	switch {
	case o.broken != nil:
		return Unknown, o.broken.Error()
	case o.baseline != "":
		return Vacuous, "the baseline was bad: " + o.baseline
	case o.held != "":
		return Vacuous, "the fault never took hold: " + o.held
	case len(o.hurt) > len(hurt):
		return Unknown, fmt.Sprintf("the fault hurt probes that it should not: %s", strings.Join(o.hurt, ", "))
	case len(hurt) > 0 && len(unhurt) > 0:
		return Unknown, fmt.Sprintf("the fault hurt %s, but not %s", strings.Join(hurt, ", "), strings.Join(unhurt, ", "))
	case len(hurt) > 0 && o.active == 0:
		return Missed, fmt.Sprintf("%s were hurt, and no detector said why", strings.Join(hurt, ", "))
	case len(hurt) > 0:
		return Reproduced, fmt.Sprintf("%s were hurt, and detectors said why", strings.Join(hurt, ", "))
	case o.active > 0:
		return Unknown, "detectors raised an alarm, but no probe was hurt"
	}
	return Prevented, "no probe was hurt, and no detector raised an alarm"
}
