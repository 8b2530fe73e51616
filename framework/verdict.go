package framework

import "slices"

// Verdict is what became of a variant.
type Verdict string

// Verdicts of a variant.
const (
	// Reproduced: users were hurt, and the detectors said why in every finding
	// that the script names.
	Reproduced Verdict = "reproduced"
	// Prevented: the same fault hurt nobody, and no detector raised an alarm.
	Prevented Verdict = "prevented"
	// Refused: the component under test does not start with what it is given,
	// and says so. Nobody was hurt.
	Refused Verdict = "refused"
	// Missed: users were hurt, and the detectors did not say why.
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

// Worst is what several runs, or variants, came to together: a failure outweighs
// what could not be judged, and that a pass.
func Worst(verdicts ...RunVerdict) RunVerdict {
	worst := Pass
	for _, v := range verdicts {
		switch v {
		case Fail:
			return Fail
		case Pass:
		default:
			worst = Inconclusive
		}
	}
	return worst
}

// Half says what a run does not prove whose variants have these roles, if it has
// only one half of a pair; it is empty for a run with both.
func Half(roles ...Role) string {
	switch {
	case slices.Contains(roles, Unclassified):
		return "" // it is compared with nothing
	case !slices.Contains(roles, Affected):
		return "no affected variant ran: nothing shows that this fault would have hurt anybody"
	case !slices.Contains(roles, Fixed):
		return "no fixed variant ran: nothing shows that the fixed version stands this fault"
	}
	return ""
}
