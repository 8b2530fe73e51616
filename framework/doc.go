// Package framework turns an incident into a run: a Scenario is data and
// steps; the engine runs them as Ginkgo specs on a lab, watches probes and
// detectors from the baseline to the end, and judges what it saw.
//
// The order is the same for each variant: install the components, prove that
// all is well (baseline), inject the fault, see the symptom in the traffic
// and the cause in the detectors, try the remedies one by one, each from the
// broken state, and put the lab back. Verdict says what may come out of it.
package framework
