package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
)

const (
	// lossesEvery is how often Progress gets the probes that lose packets. People do
	// not read faster.
	lossesEvery = time.Second
	// outcomeTakes is how long it takes until the outcome of a packet is known, unless an
	// agent is delayed.
	outcomeTakes = 2 * probe.DefaultTimeout
)

// news passes to Progress what is new in the polls of one variant: findings, and probes that
// lose packets. Only the watch's goroutine uses it.
type news struct {
	progress Progress
	scope    string
	probes   *atomic.Pointer[probe.Set]

	known map[detect.ID]bool
	asked time.Time // when the losses were last read
	lose  []string  // the probes that lost packets then
}

func (v *variantRun) newNews() *news {
	return &news{progress: v.scenario.options.Progress, scope: v.c.Label, probes: &v.live, known: map[detect.ID]bool{}}
}

func (n *news) poll(p history.Poll) {
	var found []detect.Finding
	for _, f := range p.Findings {
		if !n.known[f.ID()] {
			n.known[f.ID()] = true
			found = append(found, f)
		}
	}
	if len(found) > 0 {
		n.progress.Found(n.scope, found)
	}
	if set := n.probes.Load(); set != nil && p.Ended.Sub(n.asked) >= lossesEvery {
		n.asked = p.Ended
		until := p.Ended.Add(-outcomeTakes)
		if lose := losing(set.Timelines(), until.Add(-lossesEvery), until); !slices.Equal(lose, n.lose) {
			n.lose = lose
			n.progress.Loses(n.scope, lose)
		}
	}
}

// losing returns the running probes that lost packets in a time.
func losing(timelines []probe.Timeline, from, until time.Time) []string {
	var names []string
	for _, t := range timelines {
		if t.Stopped.IsZero() && t.Gone.IsZero() && t.Between(from, until).Lost > 0 {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}
