package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
)

// isToBeHurt tells whether the incident hurts a probe.
func (j *Judge) isImpacted(p probe.Probe) bool { return slices.Contains(j.Impacted(), p.Name) }

func anyProbe(probe.Probe) bool { return true }

// lost names those of some probes that lost packets in a time, and tells when the first
// packet was lost. A packet leaves within an interval of its slot, so that those of the
// last interval may be lost to what comes after: they do not count.
func (j *Judge) lost(timelines []probe.Timeline, since, until time.Time, which func(probe.Probe) bool) (names []string, onset time.Time) {
	for _, t := range timelines {
		first, out := t.FirstOutage(since, j.Script.MinOutage)
		if !which(t.Probe) || !out || !first.At.Before(until.Add(-t.Probe.Interval)) {
			continue
		}
		names = append(names, t.Probe.Name)
		if onset.IsZero() || first.At.Before(onset) {
			onset = first.At
		}
	}
	slices.Sort(names)
	return names, onset
}

// judgeTraffic counts each probe's packets up to a moment, notes which probes lost some,
// and says what was not as it must be.
func (j *Judge) judgeTraffic(timelines []probe.Timeline, end time.Time) (wrong []string) {
	j.Result.Packets, j.Result.Probes = report.Packets{}, nil
	for _, t := range timelines {
		entry := countsOf(t, j.cleanSince, end)
		j.Result.Packets.Sent += entry.Sent
		j.Result.Packets.Lost += entry.Lost
		j.Result.Probes = append(j.Result.Probes, entry)
		for _, since := range []time.Time{j.faulted, j.injected} {
			j.seen.traffic = cmp.Or(j.seen.traffic, tooFew(t, since, end))
		}
	}
	j.seen.impacted, _ = j.lost(timelines, j.faulted, end, j.isImpacted)
	j.seen.unaffected, _ = j.lost(timelines, j.cleanSince, end, func(p probe.Probe) bool { return !j.isImpacted(p) })
	early, _ := j.lost(timelines, j.cleanSince, j.faulted, j.isImpacted)
	j.seen.unaffected = append(j.seen.unaffected, early...)
	j.Result.ProbesHurt = append([]string{}, j.seen.impacted...)
	for _, name := range j.seen.unaffected {
		if !slices.Contains(j.Result.ProbesHurt, name) {
			j.Result.ProbesHurt = append(j.Result.ProbesHurt, name)
		}
	}
	if _, onset := j.lost(timelines, j.faulted, end, anyProbe); j.Result.Onset == nil && !onset.IsZero() {
		j.Result.Onset = &onset
	}
	if len(j.seen.unaffected) > 0 {
		wrong = append(wrong, "other probes losing packets: "+strings.Join(j.seen.unaffected, ", "))
	}
	if !j.MayReproduce() && len(j.seen.impacted) > 0 {
		wrong = append(wrong, "probes losing packets: "+strings.Join(j.seen.impacted, ", ")+"; expected: none")
	}
	return wrong
}

// countsOf counts a probe's packets in a time.
func countsOf(t probe.Timeline, since, until time.Time) report.Probe {
	c := t.Between(since, until)
	return report.Probe{
		Name: t.Probe.Name, Due: t.Due(since, until), Sent: c.Sent, Answered: c.Received, Lost: c.Lost,
		NotJudged: c.Unjudged + c.InFlight,
	}
}

// tooFew says why a probe's packets of a time prove nothing; empty where they do.
// Enough of those that its rate asks for must have been sent and judged.
func tooFew(t probe.Timeline, since, until time.Time) string {
	c := countsOf(t, since, until)
	if !probe.Enough(c.Answered+c.Lost, c.Due) {
		return fmt.Sprintf("too little traffic on %s: %d packets were due, %d were sent, and %d were answered or lost", c.Name, c.Due, c.Sent, c.Answered+c.Lost)
	}
	return ""
}

// Running names the probes that were not stopped.
func Running(timelines []probe.Timeline) []string {
	var names []string
	for _, t := range timelines {
		if t.Stopped.IsZero() {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}
