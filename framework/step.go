package framework

import (
	"fmt"
	"strings"
)

// StepKind says what a step of a variant is there for.
type StepKind string

// Kinds of steps. The order is that in which they run.
const (
	KindInstall   StepKind = "install"   // the components and the probes' endpoints are installed
	KindBaseline  StepKind = "baseline"  // probes lose nothing, and detectors come to the latent findings alone
	KindBefore    StepKind = "before"    // a check before the fault
	KindPrecursor StepKind = "precursor" // a form of the incident that impacts no traffic
	KindFault     StepKind = "fault"     // the fault is injected
	KindSymptom   StepKind = "symptom"   // the probes of the incident lose packets
	KindFindings  StepKind = "findings"  // the detectors come to the expected findings
	KindAfter     StepKind = "after"     // a check after the fault
	KindObserve   StepKind = "observe"   // no other probe loses packets, and there is no other finding
	KindRemedy    StepKind = "remedy"    // a remedy is tried
	KindVerdict   StepKind = "verdict"   // the variant is judged
	KindRestore   StepKind = "restore"   // the faults are undone
)

// StepID identifies a step among those of a variant. It stays the same when the
// sentence that describes the step is rewritten.
type StepID struct {
	Kind StepKind
	// Part is the identifier of the check, the precursor or the remedy; it is empty
	// for the other kinds.
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

// StepBefore is the step of a check before the fault, StepAfter of one after it,
// StepPrecursor that of a precursor, and StepRemedy that of a remedy.
func StepBefore(check string) StepID        { return StepID{KindBefore, check} }
func StepAfter(check string) StepID         { return StepID{KindAfter, check} }
func StepPrecursor(precursor string) StepID { return StepID{KindPrecursor, precursor} }
func StepRemedy(remedy string) StepID       { return StepID{KindRemedy, remedy} }

// String is the kind and the part, such as "remedy/static-route".
func (s StepID) String() string {
	if s.Part == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + "/" + s.Part
}

// MarshalText is String.
func (s StepID) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String returns.
func (s *StepID) UnmarshalText(text []byte) error {
	kind, part, _ := strings.Cut(string(text), "/")
	if kind == "" {
		return fmt.Errorf("step %q has no kind", text)
	}
	*s = StepID{StepKind(kind), part}
	return nil
}
