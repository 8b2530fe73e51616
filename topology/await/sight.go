package await

import (
	"context"
	"sync"
	"time"
)

// Sight is how far a wait has come.
type Sight struct {
	What  string    // what is waited for
	Saw   string    // what was seen last; empty before the first look is over
	Began time.Time // when the wait began, which tells two waits for the same apart
	Over  bool      // the wait has ended, well or not
}

type watcherKey struct{}

// Watch returns a context whose waits tell of themselves: at their beginning, when
// they see something else than before, and at their end. Waits may go on side by
// side: told is called from the goroutine of each, and must not block.
func Watch(ctx context.Context, told func(Sight)) context.Context {
	return context.WithValue(ctx, watcherKey{}, told)
}

// lookEvery bounds how often a Wait asks what is to be seen: nobody reads faster,
// and to describe it may cost more than to look.
const lookEvery = time.Second

// Wait is one that does not go through Until, and tells of itself all the same.
// Where nobody watches it does nothing.
type Wait struct {
	told func(Sight)

	mu     sync.Mutex
	sight  Sight
	looked time.Time
}

// Begin begins a wait. Its End must be called.
func Begin(ctx context.Context, what string) *Wait {
	told, _ := ctx.Value(watcherKey{}).(func(Sight))
	w := &Wait{told: told}
	if told != nil {
		w.sight = Sight{What: what, Began: time.Now()}
		told(w.sight)
	}
	return w
}

// See tells what is to be seen now. It is asked for no more than once a second.
func (w *Wait) See(saw func() string) {
	if w.told == nil {
		return
	}
	w.mu.Lock()
	early := time.Since(w.looked) < lookEvery
	if !early {
		w.looked = time.Now()
	}
	w.mu.Unlock()
	if !early {
		w.see(saw())
	}
}

func (w *Wait) see(saw string) {
	if w.told == nil {
		return
	}
	w.mu.Lock()
	changed := w.sight.Saw != saw
	w.sight.Saw = saw
	sight := w.sight
	w.mu.Unlock()
	if changed {
		w.told(sight)
	}
}

// End ends the wait.
func (w *Wait) End() {
	if w.told == nil {
		return
	}
	w.mu.Lock()
	w.sight.Over = true
	sight := w.sight
	w.mu.Unlock()
	w.told(sight)
}
