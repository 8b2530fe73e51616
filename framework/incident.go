package framework

// Incident is a documented production failure, as a record: `describe`, the
// README's table and the report are rendered from it.
type Incident struct {
	// Name names the scenario as well.
	Name  string
	Title string
	// Source is where the incident is documented.
	Source string
	// Issue is the vendor's own, or its fix, as an address; empty where it has none.
	Issue string
	// Symptom is what the users and the operators saw.
	Symptom string
	// Cause is why it happened.
	Cause string
	// Affected and Fixed are versions, in the vendor's numbering.
	Affected, Fixed string
	// Remedies are the documented ways out.
	Remedies []string
	// Reproduction says how the lab differs from the incident's cluster, what
	// ran whole and what as a slice, and what a pass does not prove.
	Reproduction string
	// Facts are statements from the reports of the incident, each with the steps that
	// assert it.
	Facts []Fact
	// Diagram is a drawing of the lab.
	Diagram string
}
