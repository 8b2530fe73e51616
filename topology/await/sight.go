package await

import (
	"context"
	"sync"
	"time"
)

// Sight is how far a wait has come.
type Sight struct {
	What  string    // what is waited for
	Saw   string    // what was seen last; empty before the first poll
	Began time.Time // when the wait began; distinguishes waits of the same name
	Over  bool      // the wait has ended, successfully or not
}

type watcherKey struct{}

// Watch returns a context whose waits call report at their beginning, when what they see changes,
// and at their end. Each wait calls report from its own goroutine; report must not block.
func Watch(ctx context.Context, report func(Sight)) context.Context {
	return context.WithValue(ctx, watcherKey{}, report)
}

// describeEvery bounds how often See asks for a description: a person reads no
// faster, and a description may cost more than a poll.
const describeEvery = time.Second

// Wait reports a wait that does not use Until. Without a Watch it does nothing.
type Wait struct {
	report func(Sight)

	mu        sync.Mutex
	sight     Sight
	described time.Time
}

// Begin begins a wait. Its End must be called.
func Begin(ctx context.Context, what string) *Wait {
	report, _ := ctx.Value(watcherKey{}).(func(Sight))
	w := &Wait{report: report}
	if report != nil {
		w.sight = Sight{What: what, Began: time.Now()}
		report(w.sight)
	}
	return w
}

// See reports what saw returns. It calls saw at most once a second.
func (w *Wait) See(saw func() string) {
	if w.report == nil {
		return
	}
	w.mu.Lock()
	early := time.Since(w.described) < describeEvery
	if !early {
		w.described = time.Now()
	}
	w.mu.Unlock()
	if !early {
		w.see(saw())
	}
}

func (w *Wait) see(saw string) {
	if w.report == nil {
		return
	}
	w.mu.Lock()
	changed := w.sight.Saw != saw
	w.sight.Saw = saw
	sight := w.sight
	w.mu.Unlock()
	if changed {
		w.report(sight)
	}
}

// End ends the wait.
func (w *Wait) End() {
	if w.report == nil {
		return
	}
	w.mu.Lock()
	w.sight.Over = true
	sight := w.sight
	w.mu.Unlock()
	w.report(sight)
}
