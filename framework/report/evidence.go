package report

import "regexp"

// EvidenceKind is what a file of evidence holds. Each has a JSON schema of that name.
type EvidenceKind string

// Kinds of evidence.
const (
	SnapshotEvidence EvidenceKind = "snapshot"
	FindingsEvidence EvidenceKind = "findings"
)

// Moments at which a snapshot is kept.
const (
	AtBaseline = "baseline"
	AfterFault = "after-fault"
	Observed   = "observed" // before the remedies
)

var evidenceName = regexp.MustCompile(`^\d+-(snapshot|findings)(?:-(.*))?\.json$`)

// EvidenceOf takes the name of a file of evidence apart, such as 03-snapshot-after-fault.json. The
// moment may be empty; the kind is empty for a file that has no schema.
func EvidenceOf(name string) (kind EvidenceKind, moment string) {
	parts := evidenceName.FindStringSubmatch(name)
	if parts == nil {
		return "", ""
	}
	return EvidenceKind(parts[1]), parts[2]
}
