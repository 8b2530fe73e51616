// Package junit writes reports as JUnit XML, for the CIs that show it: a test suite for
// each run, in it a case for each step and for each verdict.
//
// A failure is a result that is not as expected. A result that could not be judged is an
// error: an unknown or vacuous verdict, the failed steps that led to it, a step that
// broke, a run that did not end. Only variants that cannot run here are skipped.
package junit

import (
	"encoding/xml"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
)

// Name is the file of a run's JUnit report.
const Name = "junit.xml"

// Write writes the suites of reports, one for each, into a file.
func Write(path string, reports ...report.Report) error {
	suites := each.Of(reports, Suite)
	text, err := Encode(suites...)
	if err != nil {
		return err
	}
	if err := rundir.Replace(path, text); err != nil {
		return fmt.Errorf("writing a JUnit report: %w", err)
	}
	return nil
}

// Encode makes the text of a file of suites.
func Encode(suites ...reporters.JUnitTestSuite) ([]byte, error) {
	all := reporters.JUnitTestSuites{TestSuites: suites}
	for _, s := range suites {
		all.Tests += s.Tests
		all.Errors += s.Errors
		all.Failures += s.Failures
		all.Disabled += s.Skipped
		all.Time += s.Time
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding a JUnit report: %w", err)
	}
	return slices.Concat([]byte(xml.Header), text, []byte("\n")), nil
}

// Suite makes the test suite of a run.
func Suite(r report.Report) reporters.JUnitTestSuite {
	s := suite{report: r, JUnitTestSuite: reporters.JUnitTestSuite{
		Name: r.Scenario, Time: float64(r.Timings.Total) / 1000, Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
	}}
	for _, p := range []reporters.JUnitProperty{
		{Name: "verdict", Value: r.Verdict}, {Name: "command", Value: r.Command}, {Name: "relapse", Value: r.Relapse},
	} {
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
		s.add(v.Name, 0, Skipped, v.Reason)
	}
	switch {
	case r.Unfinished != nil:
		s.add("run", 0, Broke, "it has not ended; running steps: "+strings.Join(r.Unfinished.Steps, ", "))
	case r.Verdict != string(framework.Pass) && r.Verdict != string(framework.Observed) && s.Errors+s.Failures == 0:
		// A reason that belongs to no step.
		became := Broke
		if r.Verdict == string(framework.Fail) {
			became = Failed
		}
		s.add("run", 0, became, strings.Join(append([]string{r.Verdict}, reasons(r)...), "\n"))
	}
	return s.JUnitTestSuite
}

// Outcome is the result of a case.
type Outcome int

// Outcomes.
const (
	Passed Outcome = iota
	Failed
	// Broke: it could not be judged.
	Broke
	Skipped
)

// Case is a case of a suite.
type Case struct {
	Name, Owner string
	Took        time.Duration
	Became      Outcome
	// Why it did not pass, in one sentence, and Detail in as many as it takes.
	Why, Detail string
}

// Add adds a case to a suite, and counts it.
func Add(s *reporters.JUnitTestSuite, one Case) {
	c := reporters.JUnitTestCase{Name: one.Name, Classname: s.Name, Owner: one.Owner, Time: one.Took.Seconds()}
	switch one.Became {
	case Passed:
		c.Status = "passed"
	case Failed:
		c.Status, c.Failure = "failed", &reporters.JUnitFailure{Message: one.Why, Type: "not as expected", Description: one.Detail}
		s.Failures++
	case Broke:
		c.Status, c.Error = "error", &reporters.JUnitError{Message: one.Why, Type: "not judged", Description: one.Detail}
		s.Errors++
	case Skipped:
		c.Status, c.Skipped = "skipped", &reporters.JUnitSkipped{Message: one.Why}
		s.Skipped++
	}
	s.Tests++
	s.TestCases = append(s.TestCases, c)
}

type suite struct {
	reporters.JUnitTestSuite
	report report.Report
}

func (s *suite) add(name string, took time.Duration, became Outcome, why string) {
	Add(&s.JUnitTestSuite, Case{Name: name, Owner: s.report.Owner, Took: took, Became: became, Why: why})
}

// step adds the case of a step. Steps that have not ended are part of the run's case.
func (s *suite) step(step report.Step) {
	if step.Ended == nil {
		return
	}
	became := Passed
	switch {
	case step.Failed == "":
	case step.Broke || !s.judged(step.Scope):
		became = Broke
	default:
		became = Failed
	}
	s.add(step.Scope+": "+step.Name, step.Ended.Sub(step.Began), became, step.Failed)
}

// judged reports whether the variant of a step was judged. Steps of the lab belong to no variant.
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
	became := Failed
	switch {
	case verdict == expected:
		became = Passed
	case expected == "" && judged(verdict): // nobody has said whether that is good
		became = Skipped
	case !judged(verdict):
		became = Broke
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
	if r.Merged != nil {
		all = append(all, r.Merged.Conflicts...)
	}
	return all
}

// InFolder is where the JUnit report of a run is.
func InFolder(dir string) string { return filepath.Join(dir, Name) }
