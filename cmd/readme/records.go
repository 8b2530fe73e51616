package main

import (
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/each"
)

// records has a section for each incident: its record, without the facts, and its variants.
func records(all []framework.Scenario) string {
	return each.Joined(all, "\n", func(s framework.Scenario) string { return record(s.Incident) + "\n" + variants(s) })
}

func record(i framework.Incident) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n**%s**\n\n%s", i.Name, escaped(i.Title), fenced(i.Diagram))
	for _, part := range []struct{ title, text string }{
		{"Symptom", i.Symptom}, {"Cause", i.Cause}, {"Reproduction", i.Reproduction},
	} {
		fmt.Fprintf(&b, "\n**%s.** %s", part.title, prose(part.text))
	}
	fmt.Fprintf(&b, "\n**Remedies.**\n\n")
	for _, remedy := range i.Remedies {
		fmt.Fprintf(&b, "- %s\n", escaped(remedy))
	}
	fmt.Fprintf(&b, "\n**Affected**: %s. **Fixed**: %s. **Source**: %s.", escaped(i.Affected), escaped(i.Fixed), escaped(i.Source))
	if i.Issue != "" {
		fmt.Fprintf(&b, " **The vendor's issue or fix**: <%s>.", i.Issue)
	}
	return b.String() + "\n"
}

// prose is a record's text as Markdown: paragraphs with indented lines become blocks
// of code, for such paragraphs are tables and lists.
func prose(text string) string {
	var paragraphs []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			paragraphs = append(paragraphs, fenced(paragraph))
			continue
		}
		paragraphs = append(paragraphs, escaped(paragraph)+"\n")
	}
	return strings.Join(paragraphs, "\n")
}

func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`).Replace(text)
}
