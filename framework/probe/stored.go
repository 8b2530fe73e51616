package probe

import (
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/each"
)

// Stored is a timeline with all that it takes to judge it later, packet by packet.
type Stored struct {
	Record
	Sent       wire.Runs `json:"sent,omitempty"`
	Answered   wire.Runs `json:"answered,omitempty"`
	Seen       wire.Runs `json:"seen,omitempty"`
	Denied     wire.Runs `json:"denied,omitempty"`
	Resolved   wire.Runs `json:"resolved,omitempty"`
	Unresolved wire.Runs `json:"unresolved,omitempty"`
	Broken     wire.Runs `json:"broken,omitempty"`
}

// runs are the packets by what is known of them, in the order of Timeline.sets.
func (s *Stored) runs() []*wire.Runs {
	return []*wire.Runs{&s.Sent, &s.Answered, &s.Seen, &s.Denied, &s.Resolved, &s.Unresolved, &s.Broken}
}

// Store returns the timeline for a file. Wall converts a time with a monotonic reading,
// which a file cannot hold, to one of the same clock without it.
func (t *Timeline) Store(wall func(time.Time) time.Time) Stored {
	s := Stored{Record: t.Record}
	for i, set := range t.sets() {
		*s.runs()[i] = set.runs()
	}
	s.Probe.Login = nil // it has a password, and judging does not need it
	for _, at := range []*time.Time{&s.Started, &s.Reported, &s.Stopped, &s.Gone, &s.FarReported, &s.FarGone} {
		*at = wall(*at)
	}
	store := func(still StillTime) StillTime { return StillTime{wall(still.From), wall(still.Until)} }
	s.Still, s.FarStill = each.Of(t.Still, store), each.Of(t.FarStill, store)
	return s
}

// maxSlots bounds the packets of a stored probe: days of one each 10 ms.
const maxSlots = 1 << 26

// Validate refuses what no run stores, and what would take a reader forever.
func (s Stored) Validate() error {
	if s.Probe.Interval <= 0 {
		return fmt.Errorf("probe %s: interval %s is not positive", s.Probe.Name, s.Probe.Interval)
	}
	for _, runs := range s.runs() {
		total := 0
		for _, run := range *runs {
			if total += int(run[1]-run[0]) + 1; run[1] < run[0] || run[1] >= maxSlots || total > maxSlots {
				return fmt.Errorf("probe %s: packets %d to %d, %d in all", s.Probe.Name, run[0], run[1], total)
			}
		}
	}
	return nil
}

// At returns the timeline as it was known at a moment, with one simplification: an answer
// counts from when its packet was sent.
func (s Stored) At(moment time.Time) Timeline {
	past := func(at time.Time) time.Time { // an event that is to come has not happened
		if at.After(moment) {
			return time.Time{}
		}
		return at
	}
	upTo := func(at time.Time) time.Time {
		if at.After(moment) {
			return moment
		}
		return at
	}
	t := Timeline{Record: s.Record}
	t.Reported, t.FarReported = upTo(s.Reported), upTo(s.FarReported)
	t.Stopped, t.Gone, t.FarGone = past(s.Stopped), past(s.Gone), past(s.FarGone)
	if t.Gone.IsZero() {
		t.GoneWhy = ""
	}
	begun := func(stored []StillTime) (all []StillTime) {
		for _, still := range stored {
			if still.From.Before(moment) {
				all = append(all, StillTime{still.From, upTo(still.Until)})
			}
		}
		return all
	}
	t.Still, t.FarStill = begun(s.Still), begun(s.FarStill)
	end := t.from(moment)
	to := t.sets()
	for i, runs := range s.runs() {
		for slot := range runs.All {
			if slot < end {
				to[i].add(slot)
			}
		}
	}
	return t
}

func (s slots) runs() wire.Runs {
	var r wire.Runs
	for i := range s.end() {
		if s.has(i) {
			r.Add(i)
		}
	}
	return r
}
