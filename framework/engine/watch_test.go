package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// said is a detector that says what it is told to.
type said struct {
	now atomic.Pointer[[]detect.Finding]
}

func (*said) Name() string             { return "said" }
func (*said) Reads() []snapshot.Source { return nil }

func (s *said) Detect([]snapshot.Snapshot) []detect.Finding {
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

// watching runs do with a watch, in a bubble with a clock of its own.
func watching(t *testing.T, do func(*testing.T, *watch, *said)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &said{}
		w := startWatch(collectNow, []detect.Detector{d}, lookEvery)
		defer w.Stop()
		do(t, w, d)
	})
}

// looks lets a watch look a few times.
func looks(n int) {
	time.Sleep(time.Duration(n) * lookEvery) // the bubble's time
	synctest.Wait()
}

func TestWatchRemembersFirstSightings(t *testing.T) {
	watching(t, func(t *testing.T, w *watch, d *said) {
		began := time.Now()
		looks(5)
		d.says(found("swapped", "b", detect.Latent))
		looks(1)
		d.says(found("lost", "a", detect.Active), found("swapped", "b", detect.Latent))
		looks(3)
		d.says(found("swapped", "b", detect.Active)) // the same thing in another state is news
		looks(3)
		type at struct {
			says  string
			state detect.State
			after time.Duration
		}
		var got []at
		for _, s := range w.seen() {
			got = append(got, at{s.Says, s.State, s.at.Sub(began)})
		}
		want := []at{
			{"swapped b", detect.Latent, 6 * lookEvery},
			{"lost a", detect.Active, 7 * lookEvery},
			{"swapped b", detect.Active, 10 * lookEvery},
		}
		if !slices.Equal(got, want) {
			t.Errorf("seen %v, want %v", got, want)
		}
		if last, _ := w.now(); len(last) != 1 || last[0].Object != detect.Named("b") {
			t.Errorf("found %v, want b alone: a was seen earlier, not at the last look", last)
		}
	})
}

func TestWatchForgets(t *testing.T) {
	watching(t, func(t *testing.T, w *watch, d *said) {
		d.says(found("lost", "a", detect.Active))
		looks(2)
		w.forget()
		if seen := w.seen(); len(seen) > 0 {
			t.Errorf("seen %v right after forget", seen)
		}
		forgot := time.Now()
		looks(2)
		seen := w.seen()
		if len(seen) != 1 || !seen[0].at.After(forgot) {
			t.Errorf("seen %v, want a again, anew", seen)
		}
	})
}

func TestWatchShowsDetectorsABoundedHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var longest atomic.Int64
		d := detectorFunc(func(history []snapshot.Snapshot) []detect.Finding {
			longest.Store(max(longest.Load(), int64(len(history))))
			return nil
		})
		w := startWatch(collectNow, []detect.Detector{d}, lookEvery)
		defer w.Stop()
		looks(2 * int(detect.History/lookEvery))
		if got := longest.Load(); got != int64(int(detect.History/lookEvery)) {
			t.Errorf("%d snapshots, want %d: %s of them", got, int(detect.History/lookEvery), detect.History)
		}
	})
}

type detectorFunc func([]snapshot.Snapshot) []detect.Finding

func (detectorFunc) Name() string                                    { return "func" }
func (detectorFunc) Reads() []snapshot.Source                        { return nil }
func (f detectorFunc) Detect(h []snapshot.Snapshot) []detect.Finding { return f(h) }

// A collection that was cut short by the end of the watching must not count:
// half a snapshot shows faults that are none.
func TestWatchDropsTheLookThatStopCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &said{}
		d.says(found("lost", "a", detect.Active))
		w := startWatch(func(ctx context.Context) snapshot.Snapshot {
			<-ctx.Done()
			return snapshot.Snapshot{}
		}, []detect.Detector{d}, lookEvery)
		synctest.Wait()
		w.Stop()
		if seen := w.seen(); len(seen) > 0 {
			t.Errorf("seen %v", seen)
		}
	})
}

func TestUntilNamed(t *testing.T) {
	lost, swapped := found("lost", "a", detect.Active), found("swapped", "b", detect.Latent)
	for _, test := range []struct {
		name   string
		wanted []framework.Finding
		saw    string // of the error; empty: they are named
	}{
		{"by kind and object", []framework.Finding{{Kind: "lost", Object: detect.Named("a")}, {Kind: "swapped", Object: detect.Named("b")}}, ""},
		{"by object alone", []framework.Finding{{Object: detect.Named("a")}}, ""},
		{"by kind alone", []framework.Finding{{Kind: "swapped"}}, ""},
		{"none asked for", nil, ""},
		{"wrong object", []framework.Finding{{Kind: "lost", Object: detect.Named("b")}}, "lost (active): lost a; swapped (latent): swapped b"},
		{"one of two", []framework.Finding{{Kind: "lost", Object: detect.Named("a")}, {Kind: "lost", Object: detect.Named("c")}}, "lost (active): lost a; swapped (latent): swapped b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			watching(t, func(t *testing.T, w *watch, d *said) {
				d.says(lost, swapped)
				err := w.untilNamed(t.Context(), test.wanted, time.Second)
				var timeout *await.TimeoutError
				switch {
				case test.saw == "" && err != nil:
					t.Error(err)
				case test.saw != "" && (!errors.As(err, &timeout) || timeout.Saw != test.saw):
					t.Errorf("%v, want a time-out that saw %q", err, test.saw)
				}
			})
		})
	}
}

// What a look has found that began before the question is no answer to it.
func TestUntilTakesALookThatBeganAfterTheCall(t *testing.T) {
	watching(t, func(t *testing.T, w *watch, d *said) {
		d.says(found("lost", "a", detect.Active))
		looks(2)
		d.says()
		began := time.Now()
		if err := w.untilQuiet(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took == 0 || took > 2*lookEvery {
			t.Errorf("quiet after %s, want the next look", took)
		}
	})
}

func TestUntilQuiet(t *testing.T) {
	watching(t, func(t *testing.T, w *watch, d *said) {
		d.says(found("swapped", "b", detect.Latent))
		if err := w.untilQuiet(t.Context(), time.Second); err != nil {
			t.Errorf("a latent finding is no noise: %v", err)
		}
		d.says(found("lost", "a", detect.Active))
		err := w.untilQuiet(t.Context(), time.Second)
		if err == nil || !strings.Contains(err.Error(), "lost a") {
			t.Errorf("%v, want what it saw last", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.untilQuiet(ctx, time.Minute); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the context's error", err)
		}
	})
}
