package page

import (
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework/report"
)

// issue is the run as text for a vendor's issue tracker, in the order in which those
// ask: what happened, what was expected, how to reproduce it, versions, anything
// else.
func issue(v view) string {
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n### %s\n\n", title) }
	if v.Incident != nil {
		fmt.Fprintf(&b, "**%s**\n", v.Incident.Title)
	}
	section("What happened?")
	if m := v.Main; m != nil {
		fmt.Fprintf(&b, "With %s (%s): %s.\n", versions(m.Components), title(m.Variant), m.Lead.sentence())
		if m.Lead.Why != "" {
			fmt.Fprintf(&b, "\n%s\n", m.Lead.Why)
		}
		for _, t := range m.Tables[:min(len(m.Tables), 1)] {
			fmt.Fprintf(&b, "\nWhat each layer says of `%s`:\n\n| layer | where | before the fault | after it | |\n|---|---|---|---|---|\n", t.Finding.Object)
			for _, r := range t.Rows {
				mark := ""
				if r.First {
					mark = "first disagreement"
				}
				fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", cell(r.Layer), cell(r.Where), cell(r.Before), cell(r.After), mark)
			}
		}
	}
	section("What did you expect to happen?")
	if fixed := v.with("fixed"); fixed != nil {
		fmt.Fprintf(&b, "What %s (%s) does under the same fault and load: %s.\n", versions(fixed.Components), title(fixed.Variant), fixed.Lead.sentence())
	} else {
		b.WriteString("That no probe loses a packet.\n")
	}
	section("How can we reproduce it?")
	fmt.Fprintf(&b, "```\nsudo bin/%s\n```\n", v.Command)
	if v.Incident != nil {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(v.Incident.Reproduction))
	}
	section("Versions")
	b.WriteString("| variant | role | components | form | verdict | expected |\n|---|---|---|---|---|---|\n")
	for _, s := range v.Sections {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", cell(title(s.Variant)), s.Role, cell(versions(s.Components)), s.Form, s.Verdict, s.Expected)
	}
	b.WriteString("\n")
	for _, p := range v.Machine {
		fmt.Fprintf(&b, "- %s: %s\n", p.Name, p.Value)
	}
	for _, m := range v.Built {
		fmt.Fprintf(&b, "- module %s %s %s\n", m.Path, m.Version, m.Sum)
	}
	for _, s := range v.Sections {
		if s.Repeats != nil {
			fmt.Fprintf(&b, "- %s: %s\n", title(s.Variant), repeats(s.Variant))
		}
	}
	section("What helps")
	if m := v.Main; m != nil {
		for _, r := range m.Ranked {
			took := ""
			if r.TimeToRecoverMS != nil {
				took = ", traffic back after " + seconds(*r.TimeToRecoverMS)
			}
			fmt.Fprintf(&b, "- %s: %s%s\n", r.Name, r.Verdict, took)
		}
	}
	section("Anything else we need to know?")
	fmt.Fprintf(&b, "Reproduced in a lab by relapse, scenario %s, run %s. ", v.Scenario, v.Run)
	b.WriteString("A slice is a main of ours around the vendor's own packages; whole is the vendor's own program.\n")
	if v.Half != "" {
		fmt.Fprintf(&b, "Half a pair: %s.\n", v.Half)
	}
	if v.Incident != nil && v.Incident.Source != "" {
		fmt.Fprintf(&b, "Documented at: %s\n", v.Incident.Source)
	}
	return strings.TrimSpace(b.String()) + "\n"
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

// rate says how often a verdict came.
func rate(r report.Rate, verdict string) string {
	return fmt.Sprintf("%s in %d of %d runs (95%% confidence: %.0f to %.0f%%)", verdict, r.Count, r.Runs, 100*r.Low, 100*r.High)
}

// cell is text in a table of Markdown.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", "<br>")
}
