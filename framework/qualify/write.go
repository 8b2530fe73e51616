package qualify

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/atomicwriter"
	"github.com/onsi/ginkgo/v2/reporters"
)

// Names of the files that Write makes.
const (
	FileJSON     = "qualification.json"
	FileMarkdown = "qualification.md"
	FileText     = "qualification.txt"
	FileJUnit    = "junit.xml"
)

// Write stores the qualification in a folder, as text, Markdown, JSON and JUnit. A
// reader never sees half of a file.
func (q Qualification) Write(dir string) error {
	text, err := json.MarshalIndent(q, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the qualification: %w", err)
	}
	junit, err := xml.MarshalIndent(q.junit(), "", "  ")
	if err != nil {
		return fmt.Errorf("writing the qualification: %w", err)
	}
	var errs []error
	for name, content := range map[string]string{
		FileJSON: string(text) + "\n", FileMarkdown: q.Markdown(), FileText: q.Text(), FileJUnit: xml.Header + string(junit) + "\n",
	} {
		errs = append(errs, atomicwriter.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the qualification: %w", err)
	}
	return nil
}

// Read returns the qualification that Write has stored in a folder. Its error is one
// sentence: there is none, or it is not in this format.
func Read(dir string) (Qualification, error) {
	var q Qualification
	path := filepath.Join(dir, FileJSON)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return q, fmt.Errorf("there is no %s in %s", FileJSON, dir)
	}
	if err != nil {
		return q, err
	}
	if err := json.Unmarshal(text, &q); err != nil {
		return q, fmt.Errorf("%s: %w", path, err)
	}
	if q.Schema != Schema {
		return q, fmt.Errorf("%s: its schema is %q, not %q", path, q.Schema, Schema)
	}
	return q, nil
}

// junit has a test for each row: one that fails the upgrade has failed, and one that
// could not be judged is an error.
func (q Qualification) junit() reporters.JUnitTestSuites {
	suite := reporters.JUnitTestSuite{
		Name:      fmt.Sprintf("qualify %s %s to %s", q.Inputs.Component, q.Inputs.From, q.Inputs.To),
		Timestamp: q.Began.UTC().Format("2006-01-02T15:04:05"), Time: float64(q.TookMS) / 1000, Tests: len(q.Rows),
	}
	for _, r := range q.Rows {
		test := reporters.JUnitTestCase{Name: r.Title(), Classname: suite.Name, Status: string(r.State), SystemOut: r.Says}
		var details []string
		for _, d := range r.details() {
			details = append(details, d[0]+": "+d[1])
		}
		switch r.State {
		case Fails:
			test.Failure = &reporters.JUnitFailure{Message: r.Says, Type: string(r.State), Description: strings.Join(details, "\n")}
			suite.Failures++
		case NotJudged:
			test.Error = &reporters.JUnitError{Message: r.Says, Type: string(r.State), Description: strings.Join(details, "\n")}
			suite.Errors++
		case NotLookedAt:
			test.Skipped = &reporters.JUnitSkipped{Message: r.Says}
			suite.Skipped++
		}
		suite.TestCases = append(suite.TestCases, test)
	}
	return reporters.JUnitTestSuites{
		Tests: suite.Tests, Errors: suite.Errors, Failures: suite.Failures, Disabled: suite.Skipped, Time: suite.Time,
		TestSuites: []reporters.JUnitTestSuite{suite},
	}
}
