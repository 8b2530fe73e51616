package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/report"
)

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
