package engine

import (
	"context"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Watch runs the detectors repeatedly until it is stopped, and adds each poll to the history.
type Watch struct {
	collect func(context.Context) snapshot.Snapshot
	history *history.History
	// news gets each poll; it may be nil.
	news func(history.Poll)

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
