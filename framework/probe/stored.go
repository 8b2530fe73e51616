package probe

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Stored is a timeline with all that it takes to judge it later, packet by packet.
type Stored struct {
	Probe    Probe          `json:"probe"`
	Target   netip.AddrPort `json:"target"`
	Started  time.Time      `json:"started,omitzero"`
	Reported time.Time      `json:"reported,omitzero"`
	Stopped  time.Time      `json:"stopped,omitzero"`
	Gone     time.Time      `json:"gone,omitzero"`
	GoneWhy  string         `json:"gone_why,omitempty"`

	Late       int            `json:"late,omitempty"`
	Duplicates int            `json:"duplicates,omitempty"`
	ReplyTTL   map[uint8]int  `json:"reply_ttl,omitempty"`
	RequestTTL map[uint8]int  `json:"request_ttl,omitempty"`
	Sources    []Source       `json:"sources,omitempty"`
	Errors     map[string]int `json:"errors,omitempty"`

	// Still are the times in which the sender's agent did not run.
	Still []StillTime `json:"still,omitempty"`

	FarReported time.Time   `json:"far_reported,omitzero"`
	FarGone     time.Time   `json:"far_gone,omitzero"`
	FarStill    []StillTime `json:"far_still,omitempty"`

	Sent       wire.Runs `json:"sent,omitempty"`
	Answered   wire.Runs `json:"answered,omitempty"`
	Seen       wire.Runs `json:"seen,omitempty"`
	Denied     wire.Runs `json:"denied,omitempty"`
	Resolved   wire.Runs `json:"resolved,omitempty"`
	Unresolved wire.Runs `json:"unresolved,omitempty"`
	Broken     wire.Runs `json:"broken,omitempty"`
}

// StillTime is a time in which an agent did not run.
type StillTime struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// Store returns the timeline for a file. Wall converts a time with a monotonic reading,
// which a file cannot hold, to one of the same clock without it.
func (t *Timeline) Store(wall func(time.Time) time.Time) Stored {
	s := Stored{
		Probe: t.Probe, Target: t.Target, Started: wall(t.Started), Reported: wall(t.Reported), Stopped: wall(t.Stopped),
		Gone: wall(t.Gone), GoneWhy: t.GoneWhy, Late: t.Late, Duplicates: t.Duplicates,
		ReplyTTL: t.ReplyTTL, RequestTTL: t.RequestTTL, Sources: t.Sources, Errors: t.Errors,
		FarReported: wall(t.farReported), FarGone: wall(t.farGone),
		Sent: t.sent.runs(), Answered: t.answered.runs(), Seen: t.seen.runs(),
		Denied: t.denied.runs(), Resolved: t.resolved.runs(), Unresolved: t.unresolved.runs(),
		Broken: t.broken.runs(),
	}
	s.Probe.Login = nil // it has a password, and judging does not need it
	store := func(all []span) (stored []StillTime) {
		for _, still := range all {
			stored = append(stored, StillTime{wall(still.from), wall(still.until)})
		}
		return stored
	}
	s.Still, s.FarStill = store(t.still), store(t.farStill)
	return s
}

// maxSlots bounds the packets of a stored probe: days of one each 10 ms.
const maxSlots = 1 << 26

// Validate refuses what no run stores, and what would take a reader forever.
func (s Stored) Validate() error {
	if s.Probe.Interval <= 0 {
		return fmt.Errorf("probe %s: interval %s is not positive", s.Probe.Name, s.Probe.Interval)
	}
	for _, runs := range []wire.Runs{s.Sent, s.Answered, s.Seen, s.Denied, s.Resolved, s.Unresolved, s.Broken} {
		total := 0
		for _, run := range runs {
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
	t := Timeline{
		Probe: s.Probe, Target: s.Target, Started: s.Started, Reported: upTo(s.Reported), Stopped: past(s.Stopped),
		Gone: past(s.Gone), GoneWhy: s.GoneWhy, Late: s.Late, Duplicates: s.Duplicates,
		ReplyTTL: s.ReplyTTL, RequestTTL: s.RequestTTL, Sources: s.Sources, Errors: s.Errors,
		farReported: upTo(s.FarReported), farGone: past(s.FarGone),
	}
	if t.Gone.IsZero() {
		t.GoneWhy = ""
	}
	begun := func(stored []StillTime) (all []span) {
		for _, still := range stored {
			if still.From.Before(moment) {
				all = append(all, span{still.From, upTo(still.Until)})
			}
		}
		return all
	}
	t.still, t.farStill = begun(s.Still), begun(s.FarStill)
	end := t.from(moment)
	for _, set := range []struct {
		from wire.Runs
		to   *slots
	}{
		{s.Sent, &t.sent},
		{s.Answered, &t.answered},
		{s.Seen, &t.seen},
		{s.Denied, &t.denied},
		{s.Resolved, &t.resolved},
		{s.Unresolved, &t.unresolved},
		{s.Broken, &t.broken},
	} {
		for slot := range set.from.All {
			if slot < end {
				set.to.add(slot)
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
