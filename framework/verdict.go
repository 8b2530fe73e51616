package framework

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
