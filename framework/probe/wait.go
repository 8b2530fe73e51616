package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// WaitOutage waits until each of the named probes has an outage that lasts at least as long as
// lasting (see Timeline.FirstOutage: with 0 one lost packet is enough) and began with a packet that
// was sent at or after since. It returns when the first of these packets was sent. The error has
// the last state of the probes; it is ErrBound, ErrGone or the context's.
func (s *Set) WaitOutage(ctx context.Context, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error) {
	which, err := s.find(names)
	if err != nil {
		return time.Time{}, fmt.Errorf("waiting for loss: %w", err)
	}
	// Of the last poll: a late reply may take back what an earlier one saw.
	at := map[string]time.Time{}
	err = s.wait(ctx, which, bound, lossOf(lasting)+" since "+clock(since), outage(since, lasting, at))
	if err != nil {
		return time.Time{}, err
	}
	return slices.MinFunc(slices.Collect(maps.Values(at)), time.Time.Compare), nil
}

// outage is met by a probe that has an outage (see WaitOutage). At gets the time of its
// first packet.
func outage(since time.Time, lasting time.Duration, at map[string]time.Time) func(*Timeline) (bool, error) {
	return func(t *Timeline) (bool, error) {
		loss, ok := t.FirstOutage(since, lasting)
		if !ok && !t.Gone.IsZero() {
			return false, ErrGone
		}
		at[t.Probe.Name] = loss.At
		return ok, nil
	}
}

// cleanFor is met by a probe that is clean (see WaitClean) up to a packet that was
// sent after called. Since gets the beginning of the clean time.
func cleanFor(window time.Duration, called time.Time, since map[string]time.Time) func(*Timeline) (bool, error) {
	return func(t *Timeline) (bool, error) {
		if !t.Gone.IsZero() {
			return false, ErrGone
		}
		run, ok := t.Clean()
		if !ok || run.Until.Before(called) || run.Until.Sub(run.Since) < window || !run.dense(t.Probe.Interval) {
			return false, nil
		}
		since[t.Probe.Name] = run.Since
		return true, nil
	}
}

func lossOf(lasting time.Duration) string {
	if lasting == 0 {
		return "loss"
	}
	return "loss for " + lasting.String()
}

// WaitClean waits until each of the named probes has been clean (see the package's comment) for as
// long as window, up to a packet that was sent after the call, and returns since when all of them
// are. Enough packets must have been sent in that time (see Enough). The error has the last state
// of the probes; it is ErrBound, ErrGone or the context's.
func (s *Set) WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error) {
	which, err := s.find(names)
	if err != nil {
		return time.Time{}, fmt.Errorf("waiting for clean probes: %w", err)
	}
	since := map[string]time.Time{}
	err = s.wait(ctx, which, bound, fmt.Sprintf("%s without loss", window), cleanFor(window, time.Now(), since))
	if err != nil {
		return time.Time{}, err
	}
	return slices.MaxFunc(slices.Collect(maps.Values(since)), time.Time.Compare), nil
}

// JudgeOutage is the result of WaitOutage by timelines as they were known when it ended.
func JudgeOutage(all []Timeline, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error) {
	at := map[string]time.Time{}
	if err := judge(all, names, bound, lossOf(lasting)+" since "+clock(since), outage(since, lasting, at)); err != nil {
		return time.Time{}, err
	}
	return slices.MinFunc(slices.Collect(maps.Values(at)), time.Time.Compare), nil
}

// JudgeClean is the result of WaitClean, called at a moment, by timelines as they were
// known when it ended.
func JudgeClean(all []Timeline, names []string, called time.Time, window, bound time.Duration) (time.Time, error) {
	since := map[string]time.Time{}
	if err := judge(all, names, bound, fmt.Sprintf("%s without loss", window), cleanFor(window, called, since)); err != nil {
		return time.Time{}, err
	}
	return slices.MaxFunc(slices.Collect(maps.Values(since)), time.Time.Compare), nil
}

func judge(all []Timeline, names []string, bound time.Duration, what string, met func(*Timeline) (bool, error)) error {
	var missing []string
	asked, reason := 0, ErrBound
	for i := range all {
		if len(names) > 0 && !slices.Contains(names, all[i].Probe.Name) {
			continue
		}
		asked++
		ok, err := met(&all[i])
		if err != nil {
			reason = err
		}
		if !ok {
			missing = append(missing, all[i].String())
		}
	}
	switch {
	case asked == 0 || asked < len(names):
		return fmt.Errorf("waiting for %s: not every probe ran", what)
	case len(missing) == 0:
		return nil
	}
	return failed(bound, what, reason, strings.Join(missing, "; "))
}

func failed(bound time.Duration, what string, err error, saw string) error {
	return fmt.Errorf("waiting %s for %s: %w; last seen: %s", bound.Round(time.Millisecond), what, err, saw)
}

func (s *Set) wait(ctx context.Context, which []int, bound time.Duration, what string, met func(*Timeline) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, ErrBound)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	watched := await.Begin(ctx, fmt.Sprintf("%d probes: %s", len(which), what))
	defer watched.End()
	for {
		missing, err := s.missing(which, met)
		if err == nil && len(missing) == 0 {
			return nil
		}
		watched.See(func() string { return s.describe(missing) })
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		return failed(bound, what, err, s.describe(missing))
	}
}

func (s *Set) missing(which []int, met func(*Timeline) (bool, error)) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []int
	var errs error
	for _, i := range which {
		ok, err := met(s.timelines[i])
		if err != nil {
			errs = err
		}
		if !ok {
			missing = append(missing, i)
		}
	}
	return missing, errs
}

func (s *Set) describe(which []int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return each.Joined(which, "; ", func(i int) string { return s.timelines[i].String() })
}
