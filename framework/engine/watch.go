package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Watch runs the detectors repeatedly until it is stopped, and adds each poll to the history.
type Watch struct {
	collect func(context.Context) snapshot.Snapshot
	history *history.History
	news    func(history.Poll)

	stop func()
	done chan struct{}

	mu        sync.Mutex
	detection *history.Detection
}

// StartWatch starts to poll a lab, once each d.Every. News gets each poll, and may be nil.
func StartWatch(collect func(context.Context) snapshot.Snapshot, d *history.Detection, h *history.History, news func(history.Poll)) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{collect: collect, detection: d, history: h, news: news, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(d.Every)
		defer tick.Stop()
		for {
			w.poll(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// Stop ends the polls, and waits for the last one. Only its snapshot is kept.
func (w *Watch) Stop() {
	w.stop()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detection.End()
}

func (w *Watch) poll(ctx context.Context) {
	now := w.collect(ctx)
	if ctx.Err() != nil {
		return // an incomplete snapshot may show faults that do not exist
	}
	w.mu.Lock()
	p := w.detection.Poll(now, w.history.Now())
	w.mu.Unlock()
	w.history.AddPoll(now, p)
	if w.news != nil {
		w.news(p)
	}
}

func (w *Watch) last() snapshot.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detection.Last()
}

const (
	// lossesEvery is how often Progress gets the probes that lose packets. People do not read faster.
	lossesEvery = time.Second
	// outcomeTakes is how long it takes until the outcome of a packet is known, unless an agent is delayed.
	outcomeTakes = 2 * probe.DefaultTimeout
)

// news passes new findings and losses of one variant to Progress. Only the watch's goroutine uses it.
type news struct {
	progress Progress
	scope    string
	probes   *atomic.Pointer[Probes]

	findings map[detect.ID]bool
	asked    time.Time // when the losses were last read
	lose     []string  // the probes that were losing packets then
}

func (n *news) poll(p history.Poll) {
	var found []detect.Finding
	for _, f := range p.Findings {
		if !n.findings[f.ID()] {
			n.findings[f.ID()] = true
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

// losing returns the running probes that lost packets in a time, and the probes of before without an answer in it: a
// probe that is stopped, or has just been started, has not recovered. It omits probes whose endpoint is gone.
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
