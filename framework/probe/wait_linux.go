package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// Reasons for which a wait fails, beside the end of its context.
var (
	// ErrBound: the bound passed.
	ErrBound = errors.New("it did not come in time")
	// ErrGone: the end that sends has gone away, so what is waited for cannot come any more.
	ErrGone = errors.New("the sending end has gone away")
)

// WaitOutage waits until each of the named probes has an outage that began at or after since and lasts
// at least as long as lasting (see Timeline.FirstOutage). It returns the beginning of the first outage.
// The error has the last state of the probes; it is ErrBound, ErrGone or the context's.
func (s *Set) WaitOutage(ctx context.Context, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error) {
	return s.awaited(ctx, names, bound, outage(since, lasting))
}

// WaitClean waits until each of the named probes has been clean (see the package's comment) for as
// long as window, up to a packet that was sent after the call, and returns since when all of them
// are. Enough packets must have been sent in that time (see Enough). The error has the last state
// of the probes; it is ErrBound, ErrGone or the context's.
func (s *Set) WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error) {
	return s.awaited(ctx, names, bound, clean(time.Now(), window))
}

// JudgeOutage is the result of WaitOutage by timelines as they were known when it ended.
func JudgeOutage(all []Timeline, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error) {
	return judge(all, names, bound, outage(since, lasting))
}

// JudgeClean is the result of WaitClean, called at a moment, by timelines as they were
// known when it ended.
func JudgeClean(all []Timeline, names []string, called time.Time, window, bound time.Duration) (time.Time, error) {
	return judge(all, names, bound, clean(called, window))
}

type event struct {
	what string
	// met reports whether it has come for a probe, and when.
	met func(*Timeline) (at time.Time, met bool, err error)
	// compare orders the times of all probes: the first one is the time of the event.
	compare func(a, b time.Time) int
}

func outage(since time.Time, lasting time.Duration) event {
	what := "loss for " + lasting.String()
	if lasting == 0 {
		what = "loss"
	}
	return event{what + " since " + clock(since), func(t *Timeline) (time.Time, bool, error) {
		began, ok := t.FirstOutage(since, lasting)
		if !ok && !t.Gone.IsZero() {
			return time.Time{}, false, ErrGone
		}
		return began, ok, nil
	}, time.Time.Compare}
}

// clean has come for a probe that is clean up to a packet that was sent after called.
func clean(called time.Time, window time.Duration) event {
	last := func(a, b time.Time) int { return b.Compare(a) }
	return event{fmt.Sprintf("%s without loss", window), func(t *Timeline) (time.Time, bool, error) {
		if !t.Gone.IsZero() {
			return time.Time{}, false, ErrGone
		}
		run, ok := t.Clean()
		ok = ok && !run.Until.Before(called) && run.Until.Sub(run.Since) >= window && run.dense(t.Probe.Interval)
		return run.Since, ok, nil
	}, last}
}

// among is the time of the event among some timelines, and the timelines that it has not come for.
func (e event) among(all []*Timeline) (at time.Time, missing []*Timeline, err error) {
	var times []time.Time
	for _, t := range all {
		at, met, gone := e.met(t)
		err = cmp.Or(gone, err)
		if times = append(times, at); !met {
			missing = append(missing, t)
		}
	}
	if len(missing) > 0 || len(times) == 0 {
		return time.Time{}, missing, err
	}
	return slices.MinFunc(times, e.compare), nil, err
}

func judge(all []Timeline, names []string, bound time.Duration, e event) (time.Time, error) {
	var asked []*Timeline
	for i := range all {
		if len(names) == 0 || slices.Contains(names, all[i].Probe.Name) {
			asked = append(asked, &all[i])
		}
	}
	if len(asked) == 0 || len(asked) < len(names) {
		return time.Time{}, fmt.Errorf("waiting for %s: not every probe ran", e.what)
	}
	at, missing, err := e.among(asked)
	if len(missing) > 0 {
		return at, failed(bound, e.what, cmp.Or(err, ErrBound), describe(missing))
	}
	return at, nil
}

func failed(bound time.Duration, what string, err error, saw string) error {
	return fmt.Errorf("waiting %s for %s: %w; last seen: %s", bound.Round(time.Millisecond), what, err, saw)
}

func (s *Set) awaited(ctx context.Context, names []string, bound time.Duration, e event) (time.Time, error) {
	which, err := s.find(names)
	if err != nil {
		return time.Time{}, fmt.Errorf("waiting for %s: %w", e.what, err)
	}
	return s.wait(ctx, which, bound, e)
}

func (s *Set) wait(ctx context.Context, which []int, bound time.Duration, e event) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, ErrBound)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	watched := await.Begin(ctx, fmt.Sprintf("%d probes: %s", len(which), e.what))
	defer watched.End()
	asked := each.Of(which, func(i int) *Timeline { return s.timelines[i] })
	for {
		s.mu.Lock()
		at, missing, err := e.among(asked)
		s.mu.Unlock()
		if err == nil && len(missing) == 0 {
			return at, nil
		}
		said := func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return describe(missing)
		}
		watched.See(said)
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		return time.Time{}, failed(bound, e.what, err, said())
	}
}

func describe(all []*Timeline) string { return each.Joined(all, "; ", (*Timeline).String) }
