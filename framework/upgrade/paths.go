package upgrade

import (
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
)

// measure counts what became of a way's packets in a time.
func (w Way) measure(all []probe.Timeline, s span) Path {
	p := Path{Name: w.Name, Probes: []string{}}
	var longest time.Duration
	for _, declared := range w.Probes {
		name := declared.WithDefaults().Name
		p.Probes = append(p.Probes, name)
		i := slices.IndexFunc(all, func(t probe.Timeline) bool { return t.Probe.Name == name })
		if i < 0 {
			continue // it was not started
		}
		t := &all[i]
		c, gap := t.Between(s.began, s.ended), t.LongestGap(s.began, s.ended)
		if w.OneWay {
			c, gap = t.OneWay(s.began, s.ended), t.LongestGapOneWay(s.began, s.ended)
		}
		p.Due += t.Due(s.began, s.ended)
		p.Sent += c.Sent
		p.Answered += c.Received
		p.Lost += c.Lost
		p.NotJudged += c.Unjudged + c.InFlight
		p.Broken += t.Broken(s.began, s.ended)
		if gap.Lasted > longest {
			longest, p.GapProbe = gap.Lasted, name
		}
	}
	p.LongestGapMS = longest.Milliseconds()
	return p
}
