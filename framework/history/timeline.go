package history

import (
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Presence is a finding and the times at which it was there.
type Presence struct {
	Finding
	// Times are in order. A finding of two polls in a row was also there between them.
	Times []Period
}

// Period is a time from the first to the last poll with a finding.
type Period struct{ From, Until time.Time }

// Presences are the findings of all polls, in the order in which they appeared.
func (h *History) Presences() []Presence {
	var all []Presence
	index := map[detect.ID]int{}
	last := map[detect.ID]int{} // the number of the last poll with the finding
	for n, p := range h.View().Polls() {
		for _, f := range p.Findings {
			key := f.ID()
			i, known := index[key]
			if !known {
				i, index[key] = len(all), len(all)
				all = append(all, Presence{Finding: f})
			}
			if times := all[i].Times; known && last[key] >= n-1 {
				times[len(times)-1].Until = p.Ended
			} else {
				all[i].Times = append(times, Period{p.Ended, p.Ended})
			}
			last[key] = n
		}
	}
	return all
}

// Changes are the changes of sessions, routes and addresses from poll to poll, oldest first.
// more is the number of further changes, which are in the record only.
func (h *History) Changes() (changes []snapshot.Change, more int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changes), h.more
}

// Traffic is, of each time that a probe was started, the newest timeline. Probes are in the
// order in which they were started.
func (h *History) Traffic() []probe.Timeline {
	type start struct {
		probe string
		at    int64 // in nanoseconds
	}
	type record struct {
		probe.Stored
		until time.Time
	}
	index := map[start]int{}
	var newest []record
	for _, e := range h.View().entries {
		for _, s := range e.Probes {
			key := start{s.Probe.Name, s.Started.UnixNano()}
			i, known := index[key]
			switch {
			case s.Started.IsZero():
			case known:
				newest[i] = record{s, e.At}
			default:
				index[key] = len(newest)
				newest = append(newest, record{s, e.At})
			}
		}
	}
	return each.Of(newest, func(r record) probe.Timeline { return r.At(r.until) })
}
