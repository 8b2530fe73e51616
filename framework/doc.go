// Package framework is the vocabulary of an incident: its record, the scenario
// that makes it happen, the variants that it happens with or does not, and what
// may come of them.
//
// A Scenario is data and steps. Package engine runs it on a lab, and the order
// is the same for each variant: install the components, prove that all is well
// (baseline), inject the fault, see the symptom in the traffic and the cause in
// the detectors, try the remedies one by one, each from the broken state, and
// put the lab back.
package framework
