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
	// lossesEvery is how often probes are asked whether they lose packets: whoever
	// watches does not read faster.
	lossesEvery = time.Second
	// fateTakes is how long it is not known of a packet whether it was lost, unless
	// an agent is held up.
	outcomeTakes = 2 * probe.DefaultTimeout
)

// news tells progress what is new in the looks of one variant: findings, and probes
// that lose packets. Only the watch's goroutine uses it.
type news struct {
	progress Progress
	scope    string
	probes   *atomic.Pointer[probe.Set]

	known map[detect.ID]bool
	asked time.Time // when the probes were asked last
	lose  []string  // what they said
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

// losing names the running probes that have lost packets of a time.
func losing(timelines []probe.Timeline, from, until time.Time) []string {
	var names []string
	for _, t := range timelines {
		if t.Stopped.IsZero() && t.Gone.IsZero() && t.Between(from, until).Lost > 0 {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}
