package page

import (
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/plain"
)

// issue is the run as Markdown for a vendor's issue tracker, in the order in which trackers ask:
// what happened, what was expected, how to reproduce it, versions, anything else.
func issue(v view) string {
	i := &issueText{view: v}
	if v.Incident != nil {
		i.addf("**%s**\n", v.Incident.Title)
	}
	i.happened()
	i.section("What did you expect to happen?")
	if fixed := v.with("fixed"); fixed != nil {
		i.addf("What %s (%s) does under the same fault and load: %s.\n",
			versions(fixed.Components), fixed.Variant.Title(), fixed.Lead.sentence())
	} else {
		i.addf("No probe loses packets.\n")
	}
	i.section("How can we reproduce it?")
	i.WriteString(plain.Fenced("sudo bin/" + plain.Line(v.Command)))
	if v.Incident != nil {
		i.addf("\n%s\n", strings.TrimSpace(v.Incident.Reproduction))
	}
	i.versions()
	i.remedies()
	i.section("Anything else we need to know?")
	i.addf("Reproduced in a lab by relapse, scenario %s, run %s. ", v.Scenario, v.Run)
	i.addf("A slice is a partial build: a main function of relapse around the vendor's own packages. Whole is the vendor's own program.\n")
	if v.Half != "" {
		i.addf("Half a pair: %s.\n", v.Half)
	}
	if v.Incident != nil && v.Incident.Source != "" {
		i.addf("Documented at: %s\n", v.Incident.Source)
	}
	return strings.TrimSpace(i.String()) + "\n"
}

// issueText is the text of an issue as far as it is written.
type issueText struct {
	view
	strings.Builder
}

// addf adds text. All of it that is not of the format is from the run.
func (i *issueText) addf(format string, args ...any) {
	for n, arg := range args {
		args[n] = plain.Markdown(fmt.Sprint(arg))
	}
	fmt.Fprintf(i, format, args...)
}

func (i *issueText) row(cells ...string) {
	for n, text := range cells {
		cells[n] = plain.Cell(text)
	}
	i.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (i *issueText) section(title string) { i.addf("\n### %s\n\n", title) }

func (i *issueText) happened() {
	i.section("What happened?")
	m := i.Main
	if m == nil {
		return
	}
	i.addf("With %s (%s): %s.\n", versions(m.Components), m.Variant.Title(), m.Lead.sentence())
	if m.Lead.Why != "" {
		i.addf("\n%s\n", m.Lead.Why)
	}
	if d := m.Drawing; d != nil && len(d.Ends) > 0 {
		i.addf("\nWhere the lost packets end, according to the routing tables after the fault:\n\n")
		for _, end := range d.Ends {
			i.addf("- %s\n", end)
		}
	}
	for _, t := range m.Tables[:min(len(m.Tables), 1)] {
		i.addf("\nWhat each layer says about `%s`:\n\n", t.Finding.Object)
		i.addf("| layer | where | before the fault | after it | |\n|---|---|---|---|---|\n")
		for _, r := range t.Rows {
			mark := ""
			if r.First {
				mark = "first disagreement"
			}
			i.row(r.Layer, r.Where, r.Before, r.After, mark)
		}
	}
}

func (i *issueText) versions() {
	i.section("Versions")
	i.addf("| variant | role | components | form | verdict | expected |\n|---|---|---|---|---|---|\n")
	for _, s := range i.Sections {
		i.row(s.Title(), s.Role, versions(s.Components), s.Form, s.Verdict, s.Expected)
	}
	i.addf("\n")
	for _, p := range i.Machine {
		i.addf("- %s: %s\n", p.Name, p.Value)
	}
	for _, m := range i.Built {
		with := ""
		if m.With != "" {
			with = ", with " + m.With
		}
		i.addf("- module %s %s %s%s\n", m.Path, m.Version, m.Sum, with)
	}
	for _, s := range i.Sections {
		if s.Repeats != nil {
			i.addf("- %s: %s\n", s.Title(), repeats(s.Variant))
		}
	}
}

func (i *issueText) remedies() {
	i.section("What helps")
	if i.Main == nil {
		return
	}
	for _, r := range i.Main.Ranked {
		took := ""
		if r.TimeToRecoverMS != nil {
			took = ", traffic back after " + seconds(*r.TimeToRecoverMS)
		}
		i.addf("- %s: %s%s\n", r.Name, r.Verdict, took)
	}
}

// with is the first variant of a role; nil where there is none.
func (v view) with(role string) *section {
	for i, s := range v.Sections {
		if s.Role == role {
			return &v.Sections[i]
		}
	}
	return nil
}

// sentence is the lead as text, without a full stop.
func (l lead) sentence() string {
	text := l.What
	if l.Where != "" {
		text += ": " + l.Where
	}
	if l.Since != "" {
		text += ", since " + l.Since
	}
	return text
}

func rate(r report.Rate, verdict string) string {
	return fmt.Sprintf("%s in %d of %d runs (95%% confidence: %.0f to %.0f%%)", verdict, r.Count, r.Runs, 100*r.Low, 100*r.High)
}
