package framework

import "slices"

// Verdict is the result of a variant.
type Verdict string

// Verdicts of a variant.
const (
	// Reproduced: probes lost packets, and the detectors reported every expected finding.
	Reproduced Verdict = "reproduced"
	// Prevented: with the same fault no probe lost packets, and no finding was active.
	Prevented Verdict = "prevented"
	// Refused: the component under test does not start with what it is given, and says
	// so. No probe lost packets.
	Refused Verdict = "refused"
	// Missed: probes lost packets, and the detectors did not report why.
	Missed Verdict = "missed"
	// Vacuous: the fault did not take effect, or the baseline was bad. The run proves nothing.
	Vacuous Verdict = "vacuous"
	// Unknown: the run broke, or its result fits no other verdict.
	Unknown Verdict = "unknown"
)

// RunVerdict is the result of a whole run.
type RunVerdict string

// Verdicts of a run.
const (
	Pass         RunVerdict = "pass"         // all as expected
	Fail         RunVerdict = "fail"         // something was not as expected
	Inconclusive RunVerdict = "inconclusive" // something could not be judged
	// Observed: what a version without an expectation does is known. It is neither good nor bad.
	Observed RunVerdict = "observed"
)

// Worst is the verdict of several runs or variants together. From the worst to the best they are
// Fail, Inconclusive, Observed, Pass.
func Worst(verdicts ...RunVerdict) RunVerdict {
	worst := Pass
	for _, v := range verdicts {
		switch v {
		case Fail:
			return Fail
		case Pass:
		case Observed:
			if worst == Pass {
				worst = Observed
			}
		default:
			worst = Inconclusive
		}
	}
	return worst
}

// Half says what a run with variants of these roles does not prove, because its affected
// or its fixed half is missing; empty if neither is.
func Half(roles ...Role) string {
	switch {
	case slices.Contains(roles, Unclassified):
		return "" // there is no pair
	case !slices.Contains(roles, Affected):
		return "no affected variant ran: nothing shows that this fault causes the symptom"
	case !slices.Contains(roles, Fixed):
		return "no fixed variant ran: nothing shows that the fixed version survives this fault"
	}
	return ""
}
