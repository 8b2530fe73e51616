package framework

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
