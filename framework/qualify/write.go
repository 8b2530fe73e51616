package qualify

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

// Names of the files that Write makes.
const (
	FileJSON     = "qualification.json"
	FileMarkdown = "qualification.md"
	FileText     = "qualification.txt"
	FileJUnit    = "junit.xml"
)

// Write stores the qualification in a folder, as text, Markdown, JSON and JUnit.
func (q Qualification) Write(dir string) error {
	suites, err := junit.Encode(q.junit())
	if err == nil {
		err = stored.Write(dir, FileJSON, q, map[string]string{
			FileMarkdown: q.Markdown(), FileText: q.Text(), FileJUnit: string(suites),
		})
	}
	if err != nil {
		return fmt.Errorf("writing the qualification: %w", err)
	}
	return nil
}

// Read returns the qualification that Write stored in a folder. The error is one sentence.
func Read(dir string) (q Qualification, err error) {
	err = stored.Read(dir, FileJSON, Schema, &q)
	return q, err
}

// Rejudge judges a stored qualification again: the upgrade by its record, and the rest by
// the inputs that are stored. The error wraps fs.ErrNotExist if there is no record of an
// upgrade that was measured, and is a *history.OtherSchemaError if an older relapse wrote it.
func Rejudge(dir string) (then, now Qualification, err error) {
	if then, err = Read(dir); err != nil {
		return then, now, err
	}
	in := then.Inputs
	if in.Upgrade.Measures != nil {
		// Of the settings those are stored on which the paths depend.
		declared, err := upgrade.Of(in.Component, in.From, in.To, upgrade.Settings{
			Mode: in.Mode, Values: in.Values.ofRecord(), Subnets: in.Subnets, Family: in.Family,
		})
		if err != nil {
			return then, now, err
		}
		m, err := upgrade.Stored(filepath.Join(dir, PartUpgrade), declared, in.From, in.To)
		if err != nil {
			return then, now, fmt.Errorf("reading the record of the upgrade: %w", err)
		}
		in.Upgrade.Measures = &m
		if o := in.Otherwise; o != nil && o.Measures != nil && declared.Otherwise != nil {
			if m, err = upgrade.Stored(filepath.Join(dir, PartOtherwise), *declared.Otherwise, in.From, in.To); err != nil {
				return then, now, fmt.Errorf("reading the record of the upgrade %s: %w", o.Under, err)
			}
			in.Otherwise = &Otherwise{o.Under, Upgrade{Measures: &m, Why: o.Why}}
		}
	}
	now = Judge(in, then.Thresholds, then.Command)
	now.Began, now.TookMS, now.Relapse = then.Began, then.TookMS, then.Relapse
	return then, now, nil
}

// junit has one test per row: a row with the state no-go is a failure, and one that could
// not be judged is an error.
func (q Qualification) junit() reporters.JUnitTestSuite {
	suite := reporters.JUnitTestSuite{
		Name:      fmt.Sprintf("qualify %s %s to %s", q.Inputs.Component, q.Inputs.From, q.Inputs.To),
		Timestamp: q.Began.UTC().Format("2006-01-02T15:04:05"), Time: float64(q.TookMS) / 1000,
	}
	became := map[State]junit.Outcome{Fails: junit.Failed, NotJudged: junit.Broke, NotLookedAt: junit.Skipped}
	for _, r := range q.Rows {
		details := each.Of(r.details(), func(d [2]string) string { return d[0] + ": " + d[1] })
		junit.Add(&suite, junit.Case{Name: r.Title(), Became: became[r.State], Why: r.Says, Detail: strings.Join(details, "\n")})
		suite.TestCases[len(suite.TestCases)-1].SystemOut = r.Says
	}
	return suite
}
