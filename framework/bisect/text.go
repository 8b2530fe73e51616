package bisect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/each"
)

// perLine is how many versions a line of a terminal holds.
const perLine = 10

// WriteByMinor adds one or more lines for each minor to a table. label returns how a version is written; may be nil.
func WriteByMinor(table io.Writer, indent string, versions []string, label func(version string) string) {
	for len(versions) > 0 {
		minor := Minor(versions[0])
		n := 0
		var line []string
		for n < len(versions) && Minor(versions[n]) == minor {
			text := versions[n]
			if label != nil {
				text = label(text)
			}
			line, n = append(line, text), n+1
		}
		for some := range slices.Chunk(line, perLine) {
			fmt.Fprintf(table, "%s%s\t%s\n", indent, minor, strings.Join(some, " "))
			minor = ""
		}
		versions = versions[n:]
	}
}

// Minor returns 1.11 of 1.11.3.
func Minor(version string) string { return strings.TrimPrefix(semver.MajorMinor("v"+version), "v") }

// WritePlan writes which versions are searched, and how many runs that takes.
func (b *Bisection) WritePlan(out io.Writer) {
	all := b.Record.Versions
	fmt.Fprintf(out, "%s: %s from %s to %s, %d versions\n", b.Record.Scenario, b.Record.Component, all[0], all[len(all)-1], len(all))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	WriteByMinor(table, "  ", all, nil)
	table.Flush()
	var results []string
	with := map[string][]string{} // versions by result
	for _, s := range b.Record.Steps {
		result := s.String()
		if with[result] == nil {
			results = append(results, result)
		}
		with[result] = append(with[result], s.Version)
	}
	for _, result := range results {
		fmt.Fprintf(out, "  %s: %s\n", spans(with[result], all), result)
	}
	if earlier := b.Record.Earlier; len(earlier) > 0 {
		fmt.Fprintf(out, "  below the range, and not judged: %s; a change after minor %s will not be exact\n",
			spans(earlier, earlier), Minor(earlier[0]))
	}
	if v, more := b.search.Next(); more {
		fmt.Fprintf(out, "  first %s; %s\n", v, b.left())
	}
}

func (b *Bisection) WriteResult(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", b.conclusion())
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  VERSION\tOUTCOME\tVERDICT\tTOOK\tREPORT")
	for steps := b.sorted(); len(steps) > 0; {
		s := steps[0]
		// Consecutive versions that did not run for the same reason are one line.
		same := 1
		for !s.ran() && same < len(steps) && !steps[same].ran() && steps[same].Why == s.Why {
			same++
		}
		if same > 1 {
			s.Version += " to " + steps[same-1].Version
		}
		steps = steps[same:]
		took := "-"
		if s.TookMS > 0 {
			took = fmt.Sprintf("%.1fs", s.took().Seconds())
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", s.Version, s.Outcome, cmp.Or(s.Verdict, s.Why), took, cmp.Or(s.Report, "-"))
	}
	table.Flush()
	fmt.Fprintf(out, "  reports and %s: %s\n", FileJSON, b.Dir)
}

func (b *Bisection) conclusion() string {
	r := b.search.Result()
	name := b.Record.Scenario + ", " + b.Record.Component
	if low, high, beyond := b.judged(); r.Alike != "" && len(beyond) > 0 && low == high {
		return fmt.Sprintf("%s: only %s could be judged: %s; versions outside of it could not be judged: %s",
			name, low, r.Alike, spans(beyond, b.Record.Versions))
	} else if r.Alike != "" && len(beyond) > 0 {
		return fmt.Sprintf("%s: %s and %s are alike: %s; versions outside of them could not be judged: %s",
			name, low, high, r.Alike, spans(beyond, b.Record.Versions))
	} else if r.Alike != "" {
		text := fmt.Sprintf("%s: both ends are alike, and those of each minor: %s", name, r.Alike)
		if len(r.Unjudged) > 0 {
			text += "; not judged: " + spans(r.Unjudged, b.Record.Versions)
		}
		return text
	}
	if len(r.Changes) == 0 {
		return name + ": no version could be judged"
	}
	all := each.Of(r.Changes, func(c Change) string { return name + ": " + b.describe(c) })
	for _, s := range b.Record.Steps {
		if s.Verdict == string(framework.Refused) {
			all = append(all, fmt.Sprintf("%s: %s refuses to start, which counts as not affected", name, s.Version))
		}
	}
	return strings.Join(all, "\n")
}

func (b *Bisection) describe(c Change) string {
	change, last := "fixed", "last affected"
	if c.Outcome == Affected {
		change, last = "broken", "last not affected"
	}
	text := fmt.Sprintf("%s in %s; %s %s", change, c.First, last, c.Last)
	if len(c.Between) > 0 {
		text = fmt.Sprintf("%s in %s or earlier; %s %s; not judged: %s", change, c.First, last, c.Last,
			spans(c.Between, slices.Concat(b.Record.Earlier, b.Record.Versions)))
	}
	// A fix may have been ported back to versions that could not be judged.
	var unjudged []string
	for _, s := range b.sorted() {
		between := Compare(s.Version, c.Last) > 0 && Compare(s.Version, c.First) < 0
		if s.Outcome == Skipped && between && !slices.Contains(c.Between, s.Version) {
			unjudged = append(unjudged, s.Version)
		}
	}
	if len(unjudged) > 0 {
		text += fmt.Sprintf("; not judged in the branch before: %s", spans(unjudged, b.Record.Versions))
	}
	return text
}

// spans lists some of all versions, in order. Three or more that are consecutive among all are "first to last".
func spans(some, all []string) string {
	var text []string
	for len(some) > 0 {
		at, n := slices.Index(all, some[0]), 1
		for at >= 0 && n < len(some) && at+n < len(all) && some[n] == all[at+n] {
			n++
		}
		if n > 2 {
			text = append(text, some[0]+" to "+some[n-1])
		} else {
			text = append(text, some[:n]...)
		}
		some = some[n:]
	}
	return strings.Join(text, ", ")
}
