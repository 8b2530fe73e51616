package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
)

// watchUntil waits until all is seen up to a moment, which may be to come: the
// fate of every packet, and a look of the detectors that began then or later.
func (v *variantRun) watchUntil(ctx context.Context, until time.Time) error {
	if err := v.fateKnown(ctx, until); err != nil {
		return err
	}
	return v.lookedSince(ctx, until)
}

// lookedSince waits for a look of the detectors that began at or after a moment.
func (v *variantRun) lookedSince(ctx context.Context, moment time.Time) error {
	return v.clock.Until(ctx, "a look of the detectors", v.every()/4, v.lookWithin()+slowLooks, func(context.Context) (bool, string, error) {
		_, at := v.watch.now()
		return !at.Time.Before(moment), "the last one began at " + at.Time.Format(time.TimeOnly), nil
	})
}

// fateKnown waits until it is known of each packet up to a moment, which may be
// to come, whether it was lost.
func (v *variantRun) fateKnown(ctx context.Context, until time.Time) error {
	defer v.recordProbes()
	return v.clock.Until(ctx, "the last packets' fate", 50*time.Millisecond, max(0, until.Sub(v.clock.Now()))+fateWithin,
		func(context.Context) (bool, string, error) {
			for _, t := range v.probes.Timelines() {
				if !t.Known(until) {
					return false, t.String(), nil
				}
			}
			return true, "", nil
		})
}

// isToBeHurt tells whether the incident hurts a probe.
func (v *variantRun) isToBeHurt(p probe.Probe) bool {
	return slices.Contains(namesOf(v.script.Hurt), p.Name)
}

func anyProbe(probe.Probe) bool { return true }

// hurt names those of some probes that were hurt in a time, and tells when the
// first packet was lost. A packet leaves within an interval of its slot, so that
// those of the last interval may be lost to what comes after: they do not count.
func (v *variantRun) hurt(since, until time.Time, which func(probe.Probe) bool) (names []string, onset time.Time) {
	for _, t := range v.probes.Timelines() {
		first, out := t.FirstOutage(since, v.script.HurtFor)
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

// countsOf counts a probe's packets in a time.
func countsOf(t probe.Timeline, since, until time.Time) report.Probe {
	c := t.Between(since, until)
	return report.Probe{
		Name: t.Probe.Name, Due: t.Due(since, until), Sent: c.Sent, Answered: c.Received, Lost: c.Lost,
		NotJudged: c.Unjudged + c.InFlight,
	}
}

// tooFew says why a probe's packets of a time prove nothing; empty where they
// do. Enough of those that its rate asks for must have been sent and judged.
func tooFew(t probe.Timeline, since, until time.Time) string {
	c := countsOf(t, since, until)
	if !probe.Enough(c.Answered+c.Lost, c.Due) {
		return fmt.Sprintf("too little traffic to tell: of %d packets of %s that were due, %d were sent, and %d answered or lost", c.Due, c.Name, c.Sent, c.Answered+c.Lost)
	}
	return ""
}
