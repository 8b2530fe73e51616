package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// lookEvery is the time from one look of the detectors to the next, unless a
// script says otherwise. A finding is to come within a second of the first
// lost probe, which itself is known only some 0.4 s after it was sent.
const lookEvery = 200 * time.Millisecond

// watch asks the detectors, again and again, from start to stop.
type watch struct {
	collect   func(context.Context) snapshot.Snapshot
	detectors []detect.Detector
	every     time.Duration // from one look to the next

	stop func()
	done chan struct{}

	mu       sync.Mutex
	history  []snapshot.Snapshot
	findings []detect.Finding        // as of the last look
	looked   time.Time               // when the last look was finished
	first    map[findingKey]sighting // when each was seen first
}

// findingKey tells findings apart: what a detector says of an object may
// change its wording from look to look.
type findingKey struct {
	detector, kind, announcer string
	object                    detect.Object
	state                     detect.State
}

type sighting struct {
	detect.Finding
	at time.Time
}

func keyOf(f detect.Finding) findingKey {
	return findingKey{f.Detector, f.Kind, f.Announcer, f.Object, f.State}
}

func startWatch(collect func(context.Context) snapshot.Snapshot, detectors []detect.Detector, every time.Duration) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{
		collect: collect, detectors: detectors, every: every, stop: cancel,
		done: make(chan struct{}), first: map[findingKey]sighting{},
	}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			w.look(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// Stop ends the watching, and waits for the last look.
func (w *watch) Stop() {
	w.stop()
	<-w.done
}

func (w *watch) look(ctx context.Context) {
	now := w.collect(ctx)
	if ctx.Err() != nil {
		return // a snapshot that was cut short shows faults that are not there
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, now)
	w.history = w.history[max(0, len(w.history)-int(detect.History/w.every)):]
	w.findings = detect.Look(w.detectors, w.history)
	w.looked = time.Now()
	for _, f := range w.findings {
		if _, seen := w.first[keyOf(f)]; !seen {
			w.first[keyOf(f)] = sighting{f, w.looked}
		}
	}
}

// forget makes what is found from now on count as found anew.
func (w *watch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.first)
}

// seen returns every finding since the last forget, oldest first.
func (w *watch) seen() []sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []sighting
	for _, s := range w.first {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b sighting) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.Kind+a.Object.String(), b.Kind+b.Object.String())
	})
	return all
}

// now returns the findings of the last look, and the snapshot that it saw.
func (w *watch) now() ([]detect.Finding, snapshot.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.history) == 0 {
		return nil, snapshot.Snapshot{}
	}
	return slices.Clone(w.findings), w.history[len(w.history)-1]
}

// until waits for a look that began after the call and meets a condition.
func (w *watch) until(ctx context.Context, what string, bound time.Duration, met func([]detect.Finding) bool) error {
	begun := time.Now()
	return await.Until(ctx, what, w.every/4, bound, func(context.Context) (bool, string, error) {
		findings, seen := w.now()
		return seen.Time.After(begun) && met(findings), framework.DescribeFindings(findings), nil
	})
}

// untilQuiet waits until no detector finds anything broken.
func (w *watch) untilQuiet(ctx context.Context, bound time.Duration) error {
	return w.until(ctx, "the detectors to be quiet", bound, func(findings []detect.Finding) bool {
		return !slices.ContainsFunc(findings, func(f detect.Finding) bool { return f.State == detect.Active })
	})
}

// untilNamed waits until the detectors have come to each of the findings.
func (w *watch) untilNamed(ctx context.Context, wanted []framework.Finding, bound time.Duration) error {
	var names []string
	for _, f := range wanted {
		names = append(names, f.String())
	}
	return w.until(ctx, "the detectors to name "+strings.Join(names, ", "), bound, func(findings []detect.Finding) bool {
		return len(framework.Missing(wanted, findings)) == 0
	})
}
