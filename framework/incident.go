// Package framework has the types that describe an incident: its record, the
// scenario that reproduces it, the variants, and their verdicts.
//
// A Scenario is data and steps. Package engine runs it on a lab, in the same order for each
// variant: install the components, prove that the lab is healthy (baseline), inject the fault, wait
// for the symptom in the traffic and for the findings of the detectors, try each remedy from the
// broken state, and restore the lab.
package framework

// Incident is the record of a documented production failure. `describe`, the README's
// table and the report are rendered from it.
type Incident struct {
	// Name is also the scenario's.
	Name  string
	Title string
	// Source is where the incident is documented.
	Source string
	// Issue is the address of the vendor's issue or fix; empty if there is none.
	Issue string
	// Symptom is what users and operators observed.
	Symptom string
	Cause   string
	// Affected and Fixed are versions, in the vendor's numbering.
	Affected, Fixed string
	// Remedies are the documented ones.
	Remedies []string
	// Reproduction says how the lab differs from the incident's cluster, which components
	// ran whole and which as a slice, and what a pass does not prove.
	Reproduction string
	// Facts are statements from the reports of the incident, each with the steps that assert it.
	Facts []Fact
	// Diagram is a drawing of the lab.
	Diagram string
}
