package framework

import (
	"fmt"
	"strings"
)

// StepKind is the purpose of a step of a variant.
type StepKind string

// Kinds of steps, in the order in which they run.
const (
	KindInstall   StepKind = "install"   // the components and the probes' endpoints are installed
	KindBaseline  StepKind = "baseline"  // probes lose no packets, and detectors report the latent findings only
	KindBefore    StepKind = "before"    // a check before the fault
	KindPrecursor StepKind = "precursor" // a harmless precursor of the incident
	KindFault     StepKind = "fault"     // the fault is injected
	KindSymptom   StepKind = "symptom"   // the probes of the incident lose packets
	KindFindings  StepKind = "findings"  // the detectors report the expected findings
	KindAfter     StepKind = "after"     // a check after the fault
	KindObserve   StepKind = "observe"   // no other probe loses packets, and there is no other finding
	KindRemedy    StepKind = "remedy"    // a remedy is tried
	KindVerdict   StepKind = "verdict"   // the variant is judged
	KindRestore   StepKind = "restore"   // the faults are undone
)

// StepID identifies a step of a variant. It does not depend on the sentence that describes
// the step.
type StepID struct {
	Kind StepKind
	// Part is the identifier of the check, precursor or remedy; empty for other kinds.
	Part string
}

// Steps without a part.
var (
	StepInstall  = StepID{Kind: KindInstall}
	StepBaseline = StepID{Kind: KindBaseline}
	StepFault    = StepID{Kind: KindFault}
	StepSymptom  = StepID{Kind: KindSymptom}
	StepFindings = StepID{Kind: KindFindings}
	StepObserve  = StepID{Kind: KindObserve}
	StepVerdict  = StepID{Kind: KindVerdict}
	StepRestore  = StepID{Kind: KindRestore}
)

// StepBefore is the step of a check before the fault, and StepAfter of one after it.
func StepBefore(check string) StepID { return StepID{KindBefore, check} }
func StepAfter(check string) StepID  { return StepID{KindAfter, check} }

// StepPrecursor is the step of a precursor, and StepRemedy of a remedy.
func StepPrecursor(precursor string) StepID { return StepID{KindPrecursor, precursor} }
func StepRemedy(remedy string) StepID       { return StepID{KindRemedy, remedy} }

// String is the kind and the part, such as "remedy/static-route".
func (s StepID) String() string {
	if s.Part == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + "/" + s.Part
}

func (s StepID) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *StepID) UnmarshalText(text []byte) error {
	kind, part, _ := strings.Cut(string(text), "/")
	if kind == "" {
		return fmt.Errorf("step %q has no kind", text)
	}
	*s = StepID{StepKind(kind), part}
	return nil
}
