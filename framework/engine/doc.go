// Package engine runs scenarios on labs, which it knows by a small interface. Package suite
// connects it to Docker and Ginkgo.
//
// An Execution is one scenario of a run, or a Plan. Its Steps are planned before anything runs. Each
// is called even if an earlier one failed, and returns Skipped if it has nothing to do.
// Finish ends the execution in any case, and writes the report of a scenario. A preliminary
// report and page are written before each step.
package engine
