// Package junit writes reports as JUnit XML, for the CIs that show it: a test suite for
// each run, in it a case for each step and for each verdict.
//
// A failure is only what must not be. What could not be judged is an error: a verdict
// that is unknown or vacuous with all that went wrong on the way to it, a step that
// broke, a run that did not end. Skipped are only variants that cannot run here.
package junit

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// Name is the file of a run's JUnit report.
const Name = "junit.xml"

// Write writes the suites of reports, one for each, into a file.
func Write(path string, reports ...report.Report) error {
	var all reporters.JUnitTestSuites
	for _, r := range reports {
		s := Suite(r)
		all.TestSuites = append(all.TestSuites, s)
		all.Tests += s.Tests
		all.Errors += s.Errors
		all.Failures += s.Failures
		all.Disabled += s.Skipped
		all.Time += s.Time
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding a JUnit report: %w", err)
	}
	if err := os.WriteFile(path, slices.Concat([]byte(xml.Header), text, []byte("\n")), 0o644); err != nil {
		_ = os.Remove(path) // half of it, on a full disk
		return fmt.Errorf("writing a JUnit report: %w", err)
	}
	return nil
}

// Suite is the test suite of a run.
func Suite(r report.Report) reporters.JUnitTestSuite {
	s := suite{report: r, JUnitTestSuite: reporters.JUnitTestSuite{
		Name: r.Scenario, Time: float64(r.Timings.Total) / 1000, Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
	}}
	for _, p := range []reporters.JUnitProperty{{Name: "verdict", Value: r.Verdict}, {Name: "command", Value: r.Command}, {Name: "relapse", Value: r.Relapse}} {
		if p.Value != "" {
			s.Properties.Properties = append(s.Properties.Properties, p)
		}
	}
	for _, step := range r.Steps {
		s.step(step)
	}
	for _, v := range r.Variants {
		s.verdicts(v)
	}
	for _, v := range r.NotRun {
		s.add(v.Name, 0, skipped, v.Reason)
	}
	switch {
	case r.Unfinished != nil:
		s.add("run", 0, broke, "it has not ended; it was at: "+strings.Join(r.Unfinished.Steps, ", "))
	case r.Verdict != string(framework.Pass) && s.Errors+s.Failures == 0:
		// A reason that belongs to no step.
		became := broke
		if r.Verdict == string(framework.Fail) {
			became = failed
		}
		s.add("run", 0, became, strings.Join(append([]string{r.Verdict}, reasons(r)...), "\n"))
	}
	return s.JUnitTestSuite
}

// outcome is what became of a case.
type outcome int

const (
	passed outcome = iota
	failed
	broke
	skipped
)

// suite is a test suite in the making.
type suite struct {
	reporters.JUnitTestSuite
	report report.Report
}

func (s *suite) add(name string, took time.Duration, became outcome, why string) {
	c := reporters.JUnitTestCase{Name: name, Classname: s.Name, Owner: s.report.Owner, Time: took.Seconds()}
	switch became {
	case passed:
		c.Status = "passed"
	case failed:
		c.Status, c.Failure = "failed", &reporters.JUnitFailure{Message: why, Type: "not as expected"}
		s.Failures++
	case broke:
		c.Status, c.Error = "error", &reporters.JUnitError{Message: why, Type: "not judged"}
		s.Errors++
	case skipped:
		c.Status, c.Skipped = "skipped", &reporters.JUnitSkipped{Message: why}
		s.Skipped++
	}
	s.Tests++
	s.TestCases = append(s.TestCases, c)
}

// step is the case of a step. One that has not ended is told with the run.
func (s *suite) step(step report.Step) {
	if step.Ended == nil {
		return
	}
	became := passed
	switch {
	case step.Failed == "":
	case step.Broke || !s.judged(step.Scope):
		became = broke
	default:
		became = failed
	}
	s.add(step.Scope+": "+step.Name, step.Ended.Sub(step.Began), became, step.Failed)
}

// judged tells whether the verdict of a step's variant says anything. Steps of the lab
// belong to none.
func (s *suite) judged(scope string) bool {
	for _, v := range s.report.Variants {
		if v.Repeats != nil {
			for _, run := range v.Repeats.Runs {
				if scope == run.Scope {
					return judged(run.Verdict)
				}
			}
		}
		if scope == s.report.ScopeOf(v) {
			return judged(v.Verdict)
		}
	}
	return false
}

func judged(verdict string) bool {
	return verdict != "" && verdict != string(framework.Unknown) && verdict != string(framework.Vacuous)
}

// verdicts are the cases of what a variant came to, in each of its runs.
func (s *suite) verdicts(v report.Variant) {
	if v.Repeats == nil {
		s.verdict(s.report.ScopeOf(v)+": verdict", v.Expected, v.Verdict, v.Reasons, v.ElapsedMS)
		return
	}
	for _, run := range v.Repeats.Runs {
		s.verdict(run.Scope+": verdict", v.Expected, run.Verdict, run.Reasons, run.ElapsedMS)
	}
}

func (s *suite) verdict(name, expected, verdict string, reasons []string, elapsed int64) {
	became := failed
	switch {
	case verdict == expected || expected == "" && judged(verdict):
		became = passed
	case !judged(verdict):
		became = broke
	}
	why := verdict
	if verdict == "" {
		why = "not judged"
	}
	if expected != "" {
		why += ", expected " + expected
	}
	s.add(name, time.Duration(elapsed)*time.Millisecond, became, strings.Join(append([]string{why}, reasons...), "\n"))
}

func reasons(r report.Report) []string {
	var all []string
	for _, v := range r.Variants {
		all = append(all, v.Reasons...)
	}
	return all
}

// InFolder is where the JUnit report of a run is.
func InFolder(dir string) string { return filepath.Join(dir, Name) }
