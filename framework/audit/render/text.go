// Package render writes the result of an audit in formats for people and programs. The same Result is always written in
// the same way. Names come from a cluster that is not trusted: each format escapes them.
package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/docker/go-units"

	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

const layersShown = 8

type group struct {
	Title, State string
	Findings     []audit.Finding
}

// groups returns the findings that count, the worst first.
func groups(r audit.Result) []group {
	all := []group{
		{"Active", string(detect.Active), r.Of(detect.Active)},
		{"Settling (may pass by itself: audit again)", string(detect.Pending), r.Of(detect.Pending)},
		{"Seen in one of the last two reads (audit again)", once, r.Once},
		{"Latent", string(detect.Latent), r.Of(detect.Latent)},
		{"Hints", string(detect.Hint), r.Of(detect.Hint)},
	}
	return each.Where(all, func(g group) bool { return len(g.Findings) > 0 })
}

// gap is a section about what an audit did not find out.
type gap struct {
	Title string
	Lines []string
}

func gaps(r audit.Result) []gap {
	unread, notRun := each.Of(r.Unread, snapshot.Missing.String), each.Of(r.NotRun, audit.NotRun.String)
	notJudged := each.Of(r.NotJudged, func(g detect.Gap) string { return g.Says })
	if slices.ContainsFunc(r.Unread, snapshot.Missing.Forbidden) {
		unread = append(unread, audit.RoleHint)
	}
	all := []gap{{"Not read", unread}, {"Not run", notRun}, {"Not judged", notJudged}}
	return each.Where(all, func(g gap) bool { return len(g.Lines) > 0 })
}

// Text writes a result for a person: first the unread sources, then the findings, the worst first.
func Text(to io.Writer, r audit.Result) error {
	var out strings.Builder
	line := func(format string, args ...any) { out.WriteString(plain.Line(fmt.Sprintf(format, args...)) + "\n") }
	line("%s", head(r))
	for _, g := range gaps(r) {
		line("")
		line("%s", g.Title)
		for _, text := range g.Lines {
			line("  %s", text)
		}
	}
	for _, g := range groups(r) {
		line("")
		line("%s", g.Title)
		for _, f := range g.Findings {
			finding(line, f)
		}
	}
	if len(r.Suppressed) > 0 {
		line("")
		line("Suppressed")
	}
	for _, f := range r.Suppressed {
		line("  %s %s, %s, %s: %s", f.ID, f.Detector, f.Kind, f.State, f.Says)
		line("    %s", strings.Join(objects(f.Finding), "; "))
		line("    %s", why(f.By))
	}
	if len(r.Unused) > 0 {
		line("")
		line("Suppressions that match nothing")
	}
	for _, s := range r.Unused {
		line("  %s", unused(s))
	}
	line("")
	line("%s", Summary(r))
	if r.Cost != nil {
		line("%s", Costs(*r.Cost))
	}
	_, err := io.WriteString(to, out.String())
	return err
}

func head(r audit.Result) string {
	text := fmt.Sprintf("read %s: %s, %s", page.Count(r.Reads, "time"), page.Count(r.Nodes, "node"), page.Count(len(r.Routers), "router"))
	if r.Planned != nil {
		text += "; " + r.Planned.String()
	}
	return text
}

func finding(line func(string, ...any), f audit.Finding) {
	line("  %s %s, %s: %s", f.ID, f.Detector, f.Kind, f.Says)
	line("    %s", strings.Join(objects(f), "; "))
	for i, s := range f.Layers {
		if more := len(f.Layers) + f.MoreLayers - i; i == layersShown {
			line("    and %s of layers: -o json", page.Count(more, "statement"))
			break
		}
		line("    %s, %s: %s", s.Layer, s.Where, s.Says)
	}
	for _, c := range f.Again {
		line("    shown by%s: %s", on(c), c.Run)
	}
	for _, place := range f.Bundle {
		line("    in the bundle: %s", place)
	}
	for _, i := range f.Incidents {
		line("    incident %s: %s", i.Name, i.Describe)
		if len(i.Remedies) > 0 {
			line("      remedies: %s", strings.Join(i.Remedies, "; "))
		}
	}
}

func on(c audit.Command) string {
	if c.On == "" {
		return ""
	}
	return " (on " + c.On + ")"
}

func why(s audit.Suppression) string {
	by := ""
	if s.Owner != "" {
		by = " by " + s.Owner
	}
	return fmt.Sprintf("suppressed%s until %s (line %d): %s", by, s.Expires, s.Line, s.Reason)
}

func unused(s audit.Suppression) string {
	return fmt.Sprintf("line %d, %s: %s", s.Line, s.Of(), s.Reason)
}

func objects(f audit.Finding) []string {
	all := []string{"object " + f.Object.String()}
	for _, o := range []struct{ what, value string }{
		{"owner ", f.Owner}, {"announcer ", f.Announcer}, {"routers ", strings.Join(f.Routers, ", ")},
	} {
		if o.value != "" {
			all = append(all, o.what+o.value)
		}
	}
	if n := len(f.Pods); n > 0 {
		all = append(all, page.Count(n, "pod"))
	}
	return all
}

// Summary returns one line about the findings.
func Summary(r audit.Result) string {
	suppressed := ""
	if n := len(r.Suppressed); n > 0 {
		suppressed = fmt.Sprintf("; %d suppressed", n)
	}
	if len(r.Findings) == 0 {
		if r.Open() {
			return "nothing found that holds, but not all could be judged" + suppressed
		}
		return "nothing found" + suppressed
	}
	var counts []string
	for _, state := range []detect.State{detect.Active, detect.Pending, detect.Latent, detect.Hint} {
		if n := len(r.Of(state)); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return "findings: " + strings.Join(counts, ", ") + suppressed
}

// Costs returns one line about the cost of reading.
func Costs(c audit.Cost) string {
	return fmt.Sprintf("%s, %s received, at most %s of memory", page.Count(c.Requests, "request"),
		units.HumanSize(float64(c.Bytes)), units.BytesSize(float64(c.PeakMemory)))
}
