// Package engine runs scenarios and judges them. It knows a lab by a small
// interface, and neither Docker nor Ginkgo: package suite wires both to it.
//
// An Execution is one scenario of a run. Its Steps are known before anything
// runs; each of them runs even if an earlier one failed, and decides by itself
// whether there is anything left for it to do (Skipped). Finish ends the
// execution, whatever became of the steps, and writes the report. A report and a page
// of what is known so far are written before each step as well.
package engine
