package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

type said struct {
	now atomic.Pointer[[]detect.Finding]
}

func (*said) Name() string             { return "said" }
func (*said) Reads() []snapshot.Source { return nil }

func (s *said) Detect([]snapshot.Snapshot, *detect.Index) []detect.Finding {
	if f := s.now.Load(); f != nil {
		return *f
	}
	return nil
}

func (s *said) says(f ...detect.Finding) { s.now.Store(&f) }

func found(kind, object string, state detect.State) detect.Finding {
	return detect.Finding{Detector: "said", Kind: kind, Object: detect.Named(object), State: state, Says: kind + " " + object}
}

func collectNow(context.Context) snapshot.Snapshot { return snapshot.Snapshot{Time: time.Now()} }

func detecting(all ...detect.Detector) *history.Detection {
	return &history.Detection{Detectors: all, Every: verdict.PollEvery}
}

func watching(t *testing.T, do func(*testing.T, *Watch, *said)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &said{}
		w := StartWatch(collectNow, detecting(d), &history.History{}, nil)
		defer w.Stop()
		do(t, w, d)
	})
}

func pollTimes(n int) {
	time.Sleep(time.Duration(n) * verdict.PollEvery) // the bubble's time
	synctest.Wait()
}

func TestWatchRemembersFirstSightings(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, d *said) {
		began := time.Now()
		pollTimes(5)
		d.says(found("swapped", "b", detect.Latent))
		pollTimes(1)
		d.says(found("lost", "a", detect.Active), found("swapped", "b", detect.Latent))
		pollTimes(3)
		d.says(found("swapped", "b", detect.Active)) // the same thing in another state is news
		pollTimes(3)
		type at struct {
			says  string
			state detect.State
			delay time.Duration
		}
		got := each.Of(w.history.View().Seen(began), func(s history.Sighting) at { return at{s.Says, s.State, s.At.Sub(began)} })
		want := []at{
			{"swapped b", detect.Latent, 6 * verdict.PollEvery},
			{"lost a", detect.Active, 7 * verdict.PollEvery},
			{"swapped b", detect.Active, 10 * verdict.PollEvery},
		}
		must.Equal(t, "seen", want, got)
		objects := each.Of(w.history.View().Findings(), func(f detect.Finding) detect.Object { return f.Object })
		must.Equal(t, "found in the last poll", []detect.Object{detect.Named("b")}, objects)
	})
}

func TestWatchSaysWhatWasSeenSince(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, d *said) {
		d.says(found("lost", "a", detect.Active))
		pollTimes(2)
		time.Sleep(verdict.PollEvery / 2)
		since := time.Now()
		must.Equal(t, "seen in no poll at all", 0, len(w.history.View().Seen(since)))
		pollTimes(2)
		seen := w.history.View().Seen(since)
		must.Equal(t, seen, true, len(seen) == 1 && seen[0].At.After(since))
	})
}

type detectorFunc func([]snapshot.Snapshot) []detect.Finding

func (detectorFunc) Name() string                                                     { return "said" }
func (detectorFunc) Reads() []snapshot.Source                                         { return nil }
func (f detectorFunc) Detect(h []snapshot.Snapshot, _ *detect.Index) []detect.Finding { return f(h) }

// An interrupted collection must not count: half a snapshot shows faults that do not exist.
func TestWatchDropsTheLookThatStopCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &said{}
		d.says(found("lost", "a", detect.Active))
		w := StartWatch(func(ctx context.Context) snapshot.Snapshot {
			<-ctx.Done()
			return snapshot.Snapshot{}
		}, detecting(d), &history.History{}, nil)
		synctest.Wait()
		w.Stop()
		must.Equal(t, "seen", 0, len(w.history.View().Seen(time.Time{})))
	})
}

// waiting is a variant whose observation waits for what a watch sees.
func waiting(w *Watch) *variantRun {
	w.history.BeginStep(framework.StepObserve)
	return &variantRun{Session: &Session{h: w.history, reader: prompt{}}}
}

type prompt struct{ Reader }

func (prompt) Timeout() time.Duration { return 0 }

func isNamed(t *testing.T, w *Watch, named []framework.Finding, since time.Time, within time.Duration) (found bool, saw string) {
	t.Helper()
	v := waiting(w)
	must.NoError(t, v.untilExpected(t.Context(), named, since, within))
	at, m, marked := w.history.UnderWay(framework.StepObserve).At(history.ExpectedFound, "")
	if !marked {
		return len(named) == 0, "no mark"
	}
	return verdict.FoundExpected(at, named, m.Began), framework.DescribeFindings(at.Findings())
}

func withoutFindings(t *testing.T, w *Watch, earliest time.Time, bound time.Duration, named ...framework.Finding) (since time.Time, none bool, q history.Span) {
	t.Helper()
	must.NoError(t, waiting(w).untilNoFindings(t.Context(), history.NoFindings, earliest, bound, named...))
	at, m, _ := w.history.UnderWay(framework.StepObserve).At(history.NoFindings, "")
	q, none = verdict.NoFindings(at, earliest, m.Began, named...)
	return q.Since, none, q
}

// Where a poll takes longer than the bound, the first few still count.
func TestUntilNamedOnABusyMachine(t *testing.T) {
	for _, test := range []struct {
		look  int // that shows it
		named bool
	}{{1, true}, {2, true}, {3, true}, {4, false}} {
		synctest.Test(t, func(t *testing.T) {
			lost := found("lost", "a", detect.Active)
			n := 0
			w := StartWatch(func(context.Context) snapshot.Snapshot {
				began := time.Now()
				time.Sleep(3 * time.Second)
				return snapshot.Snapshot{Time: began}
			}, detecting(detectorFunc(func([]snapshot.Snapshot) []detect.Finding {
				if n++; n < test.look {
					return nil
				}
				return []detect.Finding{lost}
			})), &history.History{}, nil)
			defer w.Stop()
			named, saw := isNamed(t, w, []framework.Finding{framework.As(lost)}, time.Now(), time.Second)
			must.Equal(t, saw, test.named, named)
		})
	}
}

// A poll that began before the call does not end the wait.
func TestUntilTakesALookThatBeganAfterTheCall(t *testing.T) {
	watching(t, func(t *testing.T, w *Watch, d *said) {
		d.says(found("lost", "a", detect.Active))
		pollTimes(2)
		d.says()
		began := time.Now()
		lost := framework.As(found("lost", "b", detect.Active))
		d.says(found("lost", "b", detect.Active))
		named, saw := isNamed(t, w, []framework.Finding{lost}, began.Add(1), time.Minute)
		must.Equal(t, saw, true, named)
		took := time.Since(began)
		must.Equal(t, took, true, took > 0 && took <= 2*verdict.PollEvery) // by the next poll
	})
}

// TestCases shows what else ends or prolongs a wait for no findings.
func TestUntilNoFindings(t *testing.T) {
	t.Run("a time without findings before the call counts", func(t *testing.T) {
		watching(t, func(t *testing.T, w *Watch, d *said) {
			began := time.Now()
			pollTimes(int(verdict.NoFindingsFor/verdict.PollEvery) + 1)
			called := time.Now()
			_, none, q := withoutFindings(t, w, began, time.Minute)
			must.Equal(t, q, true, none && time.Since(called) <= 2*verdict.PollEvery) // by the next poll
		})
	})
	t.Run("the context ends", func(t *testing.T) {
		watching(t, func(t *testing.T, w *Watch, d *said) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := waiting(w).untilNoFindings(ctx, history.NoFindings, time.Now(), time.Minute)
			_, _, marked := w.history.UnderWay(framework.StepObserve).At(history.NoFindings, "")
			must.Equal(t, err, [...]bool{true, false}, [...]bool{errors.Is(err, context.Canceled), marked})
		})
	})
}

// A probe that lost packets has recovered when it gets answers again, not when it is stopped.
func TestLosing(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	// The window is the second to which slots 100 to 199 belong.
	const first, last = 100, 199
	for _, test := range []struct {
		name           string
		sent, answered wire.Runs
		stopped, gone  time.Time
		before, after  bool // whether it loses packets
	}{
		{name: "no loss", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, last}}},
		{name: "loses packets", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, first + 49}}, after: true},
		{name: "gets answers again", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, 49}, {first, last}}, before: true},
		{name: "stopped while it lost packets", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, 49}}, stopped: at(1100), before: true, after: true},
		{name: "stopped without loss", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, first + 9}}, stopped: at(1100)},
		{name: "started, and nothing known yet", before: true, after: true},
		{name: "its endpoint is gone", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, 49}}, gone: at(1100), before: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := probe.Probe{From: "out", To: "a", Interval: 10 * time.Millisecond}.WithDefaults()
			stored := probe.Stored{
				Record: probe.Record{Probe: p, Started: began, Reported: at(2400), FarReported: at(2400), Stopped: test.stopped, Gone: test.gone},
				Sent:   test.sent, Answered: test.answered, Seen: test.answered,
			}
			names := map[bool][]string{true: {p.Name}}
			got := losing([]probe.Timeline{stored.At(at(2400))}, names[test.before], at(first*10), at((last+1)*10))
			must.Equal(t, "losing packets", names[test.after], got, cmpopts.EquateEmpty())
		})
	}
}
