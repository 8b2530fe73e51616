package qualify

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/plain"
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

// Read returns what Write stored in a folder. The error is one sentence.
func Read(dir string) (q Qualification, err error) {
	err = stored.Read(dir, FileJSON, Schema, &q)
	return q, err
}

// Rejudge judges a stored qualification again: the upgrade by its record, and the rest by the inputs. The error wraps
// fs.ErrNotExist if the upgrade's record is gone, and is a *history.OtherSchemaError if an older relapse wrote it.
func Rejudge(dir string) (then, now Qualification, err error) {
	if then, err = Read(dir); err != nil {
		return then, now, err
	}
	inputs := then.Inputs
	if inputs.Upgrade.Measures != nil {
		// The inputs have only the settings that the paths depend on.
		declared, err := upgrade.Of(inputs.Component, inputs.From, inputs.To, upgrade.Settings{
			Mode: inputs.Mode, Values: inputs.Values.ofRecord(), Subnets: inputs.Subnets, Family: inputs.Family,
		})
		if err != nil {
			return then, now, err
		}
		m, err := upgrade.Stored(filepath.Join(dir, PartUpgrade), declared, inputs.From, inputs.To)
		if err != nil {
			return then, now, fmt.Errorf("reading the record of the upgrade: %w", err)
		}
		inputs.Upgrade.Measures = &m
		if o := inputs.Otherwise; o != nil && o.Measures != nil && declared.Otherwise != nil {
			if m, err = upgrade.Stored(filepath.Join(dir, PartOtherwise), *declared.Otherwise, inputs.From, inputs.To); err != nil {
				return then, now, fmt.Errorf("reading the record of the upgrade %s: %w", o.Under, err)
			}
			inputs.Otherwise = &Otherwise{o.Under, Upgrade{Measures: &m, Why: o.Why}}
		}
	}
	now = Judge(inputs, then.Thresholds, then.Command)
	now.Began, now.TookMS, now.Relapse = then.Began, then.TookMS, then.Relapse
	return then, now, nil
}

// junit has one test per row. A NO-GO is a failure, and a row that could not be judged is an error.
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

var marks = []struct {
	state State
	word  string
}{
	{Fails, "NO-GO"}, {NotJudged, "UNKNOWN"}, {Warning, "warning"}, {Fine, "ok"}, {NotLookedAt, "not checked"},
}

func (s State) String() string {
	for _, m := range marks {
		if m.state == s {
			return m.word
		}
	}
	return string(s)
}

// Heading is the first line: the verdict, the settings under which it holds, and the reason.
func (q Qualification) Heading() string {
	var under []string
	if q.Inputs.Family != "" {
		under = append(under, withBoth)
	}
	if q.Inputs.Under != "" && q.Inputs.Otherwise == nil { // with Otherwise the reason names both settings
		under = append(under, q.Inputs.Under)
	}
	if v := q.Inputs.Values; v != nil {
		for _, feature := range v.Without {
			under = append(under, "without "+feature)
		}
	}
	return strings.TrimSpace(string(q.Verdict)+" "+strings.Join(under, ", ")) + ": " + q.Why
}

const withBoth = "with IPv4 and IPv6"

// Title names the upgrade and the thresholds.
func (q Qualification) Title() string {
	return fmt.Sprintf("%s %s to %s; during the rollout a path may go unanswered for %s and lose %s of its packets, and none after it",
		q.Inputs.Component, q.Inputs.From, q.Inputs.To, duration(q.Thresholds.MaxGapMS), percent(q.Thresholds.MaxLost))
}

func (r Row) cells() []string {
	cells := []string{r.Title(), r.From, r.During, r.To, r.Back, r.State.String()}
	for i := range cells {
		cells[i] = cmp.Or(cells[i], "-")
	}
	return cells
}

// Text is for a terminal: the verdict, the table, the reasons for rows that are not fine, and the untested parts.
func (q Qualification) Text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n%s\n\n", q.Heading(), q.Title())
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(table, "  "+strings.Join(cells, "\t")) }
	line([]string{"", "FROM " + q.Inputs.From, "DURING", "TO " + q.Inputs.To, "ROLLBACK", "RESULT"})
	for _, r := range q.Rows {
		line(r.cells())
	}
	table.Flush()
	for _, m := range marks[:3] {
		for _, r := range q.Rows {
			if r.State != m.state {
				continue
			}
			fmt.Fprintf(&out, "\n%s  %s: %s\n", m.word, r.Title(), r.Says)
			for _, d := range r.details() {
				fmt.Fprintf(&out, "  %-7s %s\n", d[0], d[1])
			}
		}
	}
	if v := q.Inputs.Values; v != nil {
		fmt.Fprintf(&out, "\ntested with the values of %s: %s\n", strings.Join(v.Sources, ", "), v.mode())
	}
	if m := q.Inputs.Upgrade.Measures; m != nil {
		fmt.Fprintf(&out, "\nupgraded on: %s\n", m.Topology)
	}
	fmt.Fprint(&out, "\nnot tested:\n")
	for _, says := range q.NotTested {
		fmt.Fprintf(&out, "  - %s\n", says)
	}
	return out.String()
}

// details are a row's remedy, vendor's issue and command. A row that fails the upgrade has all three.
func (r Row) details() [][2]string {
	var all [][2]string
	for _, d := range [][2]string{{"remedy", r.Remedy}, {"vendor", r.Issue}, {"again", r.Command}} {
		if r.State == Fails {
			d[1] = cmp.Or(d[1], "none recorded")
		}
		if d[1] != "" {
			all = append(all, d)
		}
	}
	return all
}

// Markdown is the qualification for a ticket: the text, under its first line.
func (q Qualification) Markdown() string {
	text := fmt.Sprintf("%s\n\n%s", plain.Inline(q.Heading()), plain.Fenced(q.Text()))
	if q.Command != "" {
		text += "\nMade by " + plain.Code(q.Command) + "\n"
	}
	return text
}
