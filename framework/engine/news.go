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
	probes   *atomic.Pointer[Probes]

	known map[detect.ID]bool
	asked time.Time // when the losses were last read
	lose  []string  // the probes that lost packets then, or had not recovered
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
		if lose := losing((*set).Timelines(), n.lose, until.Add(-lossesEvery), until); !slices.Equal(lose, n.lose) {
			n.lose = lose
			n.progress.Loses(n.scope, lose)
		}
	}
}

// losing returns the running probes that lost packets in a time, and the earlier ones that
// got no answer in it: a probe that is stopped, or that has just been started, has not
// recovered. Of a probe whose endpoint is gone nothing is expected any more.
func losing(timelines []probe.Timeline, before []string, from, until time.Time) []string {
	var names []string
	for _, t := range timelines {
		if !t.Gone.IsZero() {
			continue
		}
		running, counts := t.Stopped.IsZero(), t.Between(from, until)
		unknown := slices.Contains(before, t.Probe.Name) && (!running || counts.Received == 0)
		if unknown || running && counts.Lost > 0 {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}
