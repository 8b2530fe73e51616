package page

import (
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/each"
)

// issue is the run as Markdown for a vendor's issue tracker, in the order in which trackers ask:
// what happened, how to reproduce it, versions, anything else.
func issue(v view) string {
	var text strings.Builder
	// All of it that is not of the format is from the run.
	addf := func(format string, args ...any) {
		for n, arg := range args {
			args[n] = plain.Markdown(fmt.Sprint(arg))
		}
		fmt.Fprintf(&text, format, args...)
	}
	if v.Incident != nil {
		addf("**%s**\n\n", v.Incident.Title)
	}
	variants := each.Of(v.Sections, func(s section) stored { return s.stored })
	addf("### What happened?\n\n")
	text.WriteString(plain.Fenced(strings.Join(screen(v.Report, variants), "\n")))
	addf("\n### How can we reproduce it?\n\n")
	text.WriteString(plain.Fenced("sudo bin/" + plain.Line(v.Command)))
	if v.Incident != nil {
		addf("\n%s\n", strings.TrimSpace(v.Incident.Reproduction))
	}
	addf("\n### Versions\n\n")
	for _, s := range v.Sections {
		addf("- %s: %s, %s\n", s.Title(), versions(s.Components), s.Form)
	}
	for _, p := range v.Machine {
		addf("- %s: %s\n", p.Name, p.Value)
	}
	for _, m := range v.Built {
		with := ""
		if m.With != "" {
			with = ", with " + m.With
		}
		addf("- module %s %s %s%s\n", m.Path, m.Version, m.Sum, with)
	}
	addf("\n### Anything else we need to know?\n\nReproduced in a lab by relapse, scenario %s, run %s. "+
		"A slice is a partial build: a main function of relapse around the vendor's own packages. "+
		"Whole is the vendor's own program.\n", v.Scenario, v.Run)
	if v.Half != "" {
		addf("Half a pair: %s.\n", v.Half)
	}
	if v.Incident != nil && v.Incident.Source != "" {
		addf("Documented at: %s\n", v.Incident.Source)
	}
	return strings.TrimSpace(text.String()) + "\n"
}
