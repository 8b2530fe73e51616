package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/each"
)

func (j *Judge) isImpacted(p probe.Probe) bool { return slices.Contains(j.Impacted(), p.Name) }

func anyProbe(probe.Probe) bool { return true }

// lost returns the probes that lost packets in a time, and when the first packet was lost. A packet is sent up to one
// interval after its slot. So packets of the last interval do not count: a later change may have lost them.
func (j *Judge) lost(timelines []probe.Timeline, since, until time.Time, which func(probe.Probe) bool) (names []string, onset time.Time) {
	for _, t := range timelines {
		first, out := t.FirstOutage(since, j.Script.MinOutage)
		if !which(t.Probe) || !out || !first.Before(until.Add(-t.Probe.Interval)) {
			continue
		}
		names = append(names, t.Probe.Name)
		if onset.IsZero() || first.Before(onset) {
			onset = first
		}
	}
	slices.Sort(names)
	return names, onset
}

// lossy names the probes that lost more packets than may be lost without an incident. Without a MinOutage no packet may
// be lost. With a MinOutage the machine loses some packets: no more than a tenth may be lost (a probe that is cut off
// for 2 s in each minute loses a thirtieth), and less than a quarter in any window of 4*MinOutage, because an outage
// loses a quarter of the window. An outage counts in any case.
func (j *Judge) lossy(timelines []probe.Timeline, since, until time.Time, which func(probe.Probe) bool) []string {
	names, _ := j.lost(timelines, since, until, which)
	if j.Script.MinOutage == 0 {
		return names
	}
	for _, t := range timelines {
		whole := countsOf(t, since, until)
		lossy := 10*whole.Lost > whole.Answered+whole.Lost
		for _, from := range windows(since, until, 4*j.Script.MinOutage, j.Script.MinOutage) {
			c := countsOf(t, from, from.Add(4*j.Script.MinOutage))
			judged := c.Answered + c.Lost
			lossy = lossy || c.Lost > 0 && 4*c.Lost >= judged && probe.Enough(judged, c.Due)
		}
		if lossy && which(t.Probe) && !slices.Contains(names, t.Probe.Name) {
			names = append(names, t.Probe.Name)
		}
	}
	slices.Sort(names)
	return names
}

func windows(since, until time.Time, length, step time.Duration) []time.Time {
	var all []time.Time
	last := until.Add(-length)
	for from := since; from.Before(last); from = from.Add(step) {
		all = append(all, from)
	}
	if !last.Before(since) {
		all = append(all, last)
	}
	return all
}

// spell is how long a probe may go without enough packets to prove something. It is a second: a sender on a busy
// machine was at most 370 ms late, and 1.8 ms with real-time priority. With a MinOutage it is 12*MinOutage: in a guest
// beside three busy ones, an agent of ipvs-deadlock (5 s) reported nothing for half a minute, and what counts lasts.
func (j *Judge) spell() time.Duration { return max(time.Second, 12*j.Script.MinOutage) }

// judgeTraffic counts each probe's packets up to a moment, and returns what is not as expected.
func (j *Judge) judgeTraffic(timelines []probe.Timeline, end time.Time) (wrong []string) {
	j.Result.Packets, j.Result.Probes = report.Packets{}, nil
	j.seen.impacted, _ = j.lost(timelines, j.faulted, end, j.isImpacted)
	for _, t := range timelines {
		entry := countsOf(t, j.cleanSince, end)
		j.Result.Packets.Sent += entry.Sent
		j.Result.Packets.Lost += entry.Lost
		j.Result.Probes = append(j.Result.Probes, entry)
		for _, since := range []time.Time{j.faulted, j.injected} {
			j.seen.traffic = cmp.Or(j.seen.traffic, tooFew(t, since, end))
		}
		if !slices.Contains(j.seen.impacted, t.Probe.Name) { // an impacted probe has proven enough
			j.seen.traffic = cmp.Or(j.seen.traffic, j.tooThin(t, j.faulted, end))
		}
	}
	// A probe of the incident that loses packets without an outage shows no symptom, and yet it is harmed.
	j.seen.unaffected = j.lossy(timelines, j.cleanSince, end, func(p probe.Probe) bool {
		return !j.isImpacted(p) || j.Script.MinOutage > 0 && !slices.Contains(j.seen.impacted, p.WithDefaults().Name)
	})
	early, _ := j.lost(timelines, j.cleanSince, j.faulted, j.isImpacted)
	without := func(names, others []string) []string {
		return each.Where(names, func(name string) bool { return !slices.Contains(others, name) })
	}
	j.seen.unaffected = append(j.seen.unaffected, without(early, j.seen.unaffected)...)
	j.Result.ProbesHurt = append(append([]string{}, j.seen.impacted...), without(j.seen.unaffected, j.seen.impacted)...)
	_, onset := j.lost(timelines, j.faulted, end, anyProbe)
	for _, t := range timelines { // losses without an outage
		first, lost := t.FirstOutage(j.faulted, 0)
		if lost && slices.Contains(j.seen.unaffected, t.Probe.Name) && (onset.IsZero() || first.Before(onset)) {
			onset = first
		}
	}
	if j.Result.Onset == nil && !onset.IsZero() {
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

func countsOf(t probe.Timeline, since, until time.Time) report.Probe {
	c := t.Between(since, until)
	return report.Probe{
		Name: t.Probe.Name, Due: t.Due(since, until), Sent: c.Sent, Answered: c.Received, Lost: c.Lost,
		NotJudged: c.Unjudged + c.InFlight,
	}
}

// tooFew returns a sentence if too few of a probe's packets were sent and judged; otherwise empty.
func tooFew(t probe.Timeline, since, until time.Time) string {
	c := countsOf(t, since, until)
	if !probe.Enough(c.Answered+c.Lost, c.Due) {
		return fmt.Sprintf("too little traffic on %s: %d packets were due, %d were sent, and %d were answered or lost",
			c.Name, c.Due, c.Sent, c.Answered+c.Lost)
	}
	return ""
}

// tooThin returns a sentence if a probe sent too few packets in some spell; otherwise empty.
func (j *Judge) tooThin(t probe.Timeline, since, until time.Time) string {
	spell := j.spell()
	for from := since; !from.Add(spell).After(until); from = from.Add(spell) {
		if few := tooFew(t, from, from.Add(spell)); few != "" {
			return fmt.Sprintf("%s, in the %s that began %s after the injection", few, spell, from.Sub(since))
		}
	}
	return ""
}

// Running names the probes that were not stopped.
func Running(timelines []probe.Timeline) []string {
	running := each.Where(timelines, func(t probe.Timeline) bool { return t.Stopped.IsZero() })
	return each.Of(running, func(t probe.Timeline) string { return t.Probe.Name })
}
