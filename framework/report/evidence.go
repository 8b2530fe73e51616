package report

import "regexp"

// Moments at which a snapshot is kept.
const (
	AtBaseline = "baseline"
	AfterFault = "after-fault"
	Observed   = "observed" // before the remedies
)

var evidenceName = regexp.MustCompile(`^\d+-(snapshot|findings)(?:-(.*))?\.json$`)

// EvidenceOf takes the name of a file of evidence apart, such as 03-snapshot-after-fault.json. Its kind is the
// name of its JSON schema, empty if it has none. The moment may be empty.
func EvidenceOf(name string) (kind, moment string) {
	if parts := evidenceName.FindStringSubmatch(name); parts != nil {
		kind, moment = parts[1], parts[2]
	}
	return kind, moment
}
