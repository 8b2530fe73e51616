package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/each"
)

// Screen is the first screen of a run's page as lines of text: what is broken, where, since
// when and which remedy is fastest; the remedies by their measured time to recover; the findings,
// one line a cause; and the verdicts. Dir is the run's folder.
func Screen(dir string, r report.Report) []string {
	return screen(r, each.Of(r.Variants, func(v report.Variant) stored {
		s, _ := load(dir, v, nil)
		return s
	}))
}

func screen(r report.Report, variants []stored) []string {
	if len(variants) == 0 {
		return verdicts(r)
	}
	first := variants[mainOf(variants)]
	l := newLead(first, newTracing(r.TopologyOf(first.Variant), first))
	lead := leadLines(first, l)
	return slices.Concat(lead, capped(reasons(variants, first, l)), capped(remedies(first)), capped(causes(first.Findings)), verdicts(r))
}

// most is how many lines of a kind are shown. All verdicts are shown: they are what a run is for.
const most = 8

// capped are the first lines. The last one says how many more there are.
func capped(lines []string) []string {
	if len(lines) <= most {
		return lines
	}
	return append(slices.Clone(lines[:most-1]), fmt.Sprintf("%-11sand %d more", "", len(lines)-most+1))
}

func line(about, text string) string {
	return fmt.Sprintf("%-10s %s", about, strings.Join(strings.Fields(text), " "))
}

func leadLines(s stored, l lead) []string {
	if len(s.ProbesHurt) == 0 {
		lines := []string{line("outcome", l.What)}
		if l.Why != "" {
			lines = append(lines, line("why", l.Why))
		}
		return lines
	}
	lines := []string{line("broken", fmt.Sprintf("%s (%s: %s)", l.What, s.Title(), s.lostOfImpacted()))}
	for _, one := range []pair{{"where", l.Where}, {"since", l.Since}, {"why", l.Why}, {"path", l.Path}, {"fastest", l.Fastest}} {
		if one.Value != "" {
			lines = append(lines, line(one.Name, one.Value))
		}
	}
	return lines
}

func (s stored) lostOfImpacted() string {
	var packets report.Packets
	for _, p := range s.Probes {
		if slices.Contains(s.ProbesHurt, p.Name) {
			packets.Sent += p.Sent
			packets.Lost += p.Lost
		}
	}
	return fmt.Sprintf("%d of %d packets lost", packets.Lost, packets.Sent)
}

// reasons say what is not as it must be: of the first variant, and of the others.
func reasons(variants []stored, first stored, l lead) []string {
	var all []string
	add := func(s stored, texts []string) {
		for _, text := range texts {
			all = append(all, line("because", s.Title()+": "+text))
		}
	}
	add(first, l.Alarms)
	for _, s := range variants {
		if s.Title() != first.Variant.Title() {
			add(s, s.Reasons)
		}
	}
	return all
}

// remedies are the lines of a variant's remedies, the fastest first.
func remedies(s stored) []string {
	var all []string
	for _, r := range s.ranked() {
		text := sign(r.Verdict) + " " + r.Name + ": "
		switch {
		case r.TimeToRecoverMS != nil:
			text += "traffic was back after " + report.SpanMS(*r.TimeToRecoverMS)
			if r.TimeToQuietMS != nil {
				text += ", no active findings from " + report.SpanMS(*r.TimeToQuietMS) + " on"
			}
		case r.Verdict == "does-not-help" && r.Expected == r.Verdict:
			text += "does not help, as documented"
		default:
			text += r.Verdict
			if r.Reason != "" {
				text += ": " + r.Reason
			}
		}
		if r.Verdict != r.Expected {
			text += fmt.Sprintf(" (expected: %s)", r.Expected)
		}
		all = append(all, line("remedy", text))
	}
	return all
}

// causes are the lines of findings. Findings of one detector and kind share a line, which shows
// the first of them. Findings of the fault come first, and active ones before others.
func causes(findings []report.Finding) []string {
	type cause struct{ detector, kind string }
	rank := func(f report.Finding) int {
		n := slices.Index([]detect.State{detect.Active, detect.Pending, detect.Latent, detect.Hint}, f.State)
		if f.During != "fault" {
			n += 4
		}
		return n
	}
	byRank := slices.SortedStableFunc(slices.Values(findings), func(a, b report.Finding) int { return cmp.Compare(rank(a), rank(b)) })
	var order []cause
	first, others := map[cause]report.Finding{}, map[cause]map[detect.Object]bool{}
	for _, f := range byRank {
		c := cause{f.Detector, f.Kind}
		if _, found := first[c]; !found {
			order = append(order, c)
			first[c], others[c] = f, map[detect.Object]bool{}
		}
		if f.Object != first[c].Object { // one thing goes through several states
			others[c][f.Object] = true
		}
	}
	var all []string
	for _, c := range order {
		f := first[c]
		text := fmt.Sprintf("%s %s, %s: %s", f.State, place(f), came(f), f.Says)
		if n := len(others[c]); n > 0 {
			text = fmt.Sprintf("%s %s, and %d more, %s: %s", f.State, place(f), n, came(f), f.Says)
		}
		all = append(all, line("finding", text))
	}
	return all
}

func verdicts(r report.Report) []string {
	width := 0
	for _, v := range r.Variants {
		width = max(width, len([]rune(v.Title())))
	}
	var all []string
	for _, v := range r.Variants {
		mark := sign(v.Verdict)
		if v.Verdict != "" && v.Verdict == v.Expected { // also where it is to be vacuous
			mark = sign("pass")
		}
		text := fmt.Sprintf("%s %-*s  %-10s  %s", mark, width, v.Title(), v.Role, cmp.Or(v.Verdict, "not judged yet"))
		switch {
		case v.Expected == "":
			text += ", no expectation"
		case v.Expected == v.Verdict:
			text += " as expected"
		default:
			text += ", expected " + v.Expected
		}
		text += ", " + report.SpanMS(v.ElapsedMS)
		if v.Repeats != nil {
			text += "; " + repeats(v)
		}
		all = append(all, "verdict    "+text)
	}
	for _, v := range r.NotRun {
		all = append(all, line("not run", v.Name+": "+v.Reason))
	}
	return all
}

// repeats says how often a variant got its expected verdict, and when packets were lost.
func repeats(v report.Variant) string {
	r := v.Repeats
	text := rate(r.Expected, v.Expected)
	if len(r.NotJudged) > 0 {
		judged := "none"
		if r.OfJudged != nil {
			judged = rate(*r.OfJudged, v.Expected)
		}
		numbers := each.Of(r.NotJudged, func(number int) string { return fmt.Sprintf("#%d", number) })
		text += fmt.Sprintf("; of the judged runs: %s; not judged: %s", judged, strings.Join(numbers, " "))
	}
	var onsets []int64
	for _, run := range r.Runs {
		if run.OnsetMS != nil {
			onsets = append(onsets, *run.OnsetMS)
		}
	}
	switch slices.Sort(onsets); {
	case len(onsets) == 1:
		text += fmt.Sprintf("; first loss %s after the fault", report.SpanMS(onsets[0]))
	case len(onsets) > 1:
		text += fmt.Sprintf("; first loss %s to %s after the fault", report.SpanMS(onsets[0]), report.SpanMS(onsets[len(onsets)-1]))
	}
	return text
}

func rate(r report.Rate, verdict string) string {
	return fmt.Sprintf("%s in %d of %d runs (95%% confidence: %.0f to %.0f%%)", verdict, r.Count, r.Runs, 100*r.Low, 100*r.High)
}

// issue is the run as Markdown for a vendor's issue tracker, in the order in which trackers ask:
// what happened, how to reproduce it, versions, anything else.
func issue(v view) string {
	var text strings.Builder
	// All arguments are from the run.
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

// lead is the summary on top of the page, for an engineer who was just paged.
type lead struct {
	// What is broken, Where, Since when, and Fastest, the remedy with the shortest time
	// to recover: parts of one sentence. Without impacted probes only What is set.
	What, Where, Since, Fastest string
	Why                         string // the detector's text
	Path                        string // where the lost packets end, if the tables say it
	Alarms                      []string
}

func newLead(s stored, t tracing) lead {
	l := lead{}
	if s.Verdict != "" && s.Expected != "" && s.Verdict != s.Expected {
		l.Alarms = append(l.Alarms, fmt.Sprintf("expected %s, got %s", s.Expected, s.Verdict))
	}
	l.Alarms = append(l.Alarms, s.Reasons...)
	if len(s.ProbesHurt) == 0 {
		switch {
		case s.Verdict == "":
			l.What = "No result yet of " + s.Title()
		case s.Refuses != "":
			l.What = fmt.Sprintf("No outage: %s refuses to start with its configuration", s.Title())
			l.Why = s.Refuses
		case s.Packets.Sent == 0:
			l.What = "Nothing was measured of " + s.Title()
		default:
			l.What = fmt.Sprintf("No outage with %s: all probes together lost %d of %d packets", s.Title(), s.Packets.Lost, s.Packets.Sent)
		}
		return l
	}
	probes := strings.Join(s.ProbesHurt, " and ")
	if len(s.ProbesHurt) > 2 {
		probes = fmt.Sprintf("%d of %d probes, including %s,", len(s.ProbesHurt), max(len(s.Probes), s.Baseline.Probes), s.ProbesHurt[0])
	}
	denied, one := slices.ContainsFunc(s.traffic, isDenied), len(s.ProbesHurt) == 1
	verb := "get no answer"
	switch {
	case denied && one:
		verb = "is denied"
	case denied:
		verb = "are denied"
	case one:
		verb = "gets no answer"
	}
	l.What = probes + " " + verb
	if f := s.key(); f != nil {
		l.Where, l.Why = place(*f), f.Says
	}
	if j := t.journeys(); len(j) > 0 && j[0].End != "" {
		l.Path = j[0].String()
	}
	if s.Onset != nil {
		l.Since = s.Onset.UTC().Format("15:04:05.000 UTC")
		if fault := s.faultAt(); !fault.IsZero() {
			l.Since += fmt.Sprintf(" (%s after the fault)", report.SpanMS(s.Onset.Sub(fault).Milliseconds()))
		}
	}
	if r := s.ranked(); len(r) > 0 && r[0].TimeToRecoverMS != nil {
		l.Fastest = fmt.Sprintf("%s: traffic was back after %s", r[0].Name, report.SpanMS(*r[0].TimeToRecoverMS))
	}
	return l
}

func place(f report.Finding) string {
	object := f.Object.String()
	text := object
	var more []string
	for _, one := range slices.Concat([]string{f.Owner, f.Announcer}, f.Routers) {
		if one != "" && one != object && !slices.Contains(more, one) {
			more = append(more, one)
		}
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return f.Kind + " at " + text
}
