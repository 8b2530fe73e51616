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

// isImpacted reports whether a probe loses packets in the incident.
func (j *Judge) isImpacted(p probe.Probe) bool { return slices.Contains(j.Impacted(), p.Name) }

func anyProbe(probe.Probe) bool { return true }

// lost returns those of some probes that lost packets in a time, and when the first packet
// was lost. A packet is sent up to one interval after its slot. So packets of the last
// interval do not count: they may be lost to what comes after.
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
// and returns what is not as expected.
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

// tooFew says so if too few of the packets that a probe's rate asks for were sent and
// judged in a time; otherwise it is empty.
func tooFew(t probe.Timeline, since, until time.Time) string {
	c := countsOf(t, since, until)
	if !probe.Enough(c.Answered+c.Lost, c.Due) {
		return fmt.Sprintf("too little traffic on %s: %d packets were due, %d were sent, and %d were answered or lost", c.Name, c.Due, c.Sent, c.Answered+c.Lost)
	}
	return ""
}

// Running returns the probes that were not stopped.
func Running(timelines []probe.Timeline) []string {
	var names []string
	for _, t := range timelines {
		if t.Stopped.IsZero() {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}
