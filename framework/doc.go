// Package framework has the types that describe an incident: its record, the
// scenario that reproduces it, the variants, and their verdicts.
//
// A Scenario is data and steps. Package engine runs it on a lab, in the same order for each
// variant: install the components, prove that the lab is healthy (baseline), inject the fault, wait
// for the symptom in the traffic and for the findings of the detectors, try each remedy from the
// broken state, and restore the lab.
package framework
