package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// lookEvery is the time from one look of the detectors to the next, unless a
	// script says otherwise. A finding is to come within a second of the first
	// lost probe, which itself is known only some 0.4 s after it was sent.
	lookEvery = 200 * time.Millisecond
	// quietFor is how long the detectors must be quiet to count as quiet.
	quietFor = 5 * time.Second
)

// watch asks the detectors, again and again, from start to stop.
type watch struct {
	collect   func(context.Context) snapshot.Snapshot
	detectors []detect.Detector
	every     time.Duration // from one look to the next
	scope     scope
	clock     clock
	// looked is told of each look, with what it saw, before anybody judges it.
	looked func(snapshot.Snapshot, look)
	// news is told of each look after that; it may be nil.
	news func(look)

	stop func()
	done chan struct{}

	mu      sync.Mutex
	history []snapshot.Snapshot
	looks   []look            // all of them, oldest first
	changes []snapshot.Change // from look to look, maxChanges at most
	more    int               // changes beyond that
}

// maxChanges bounds what a watch keeps of changes: a layer that flaps in every look
// is told of in the first of them.
const maxChanges = 5000

// scope is what of a lab the findings of a variant are about: its own nodes, and
// all that is not another variant's.
type scope struct{ own, others []string }

// of returns those findings that name no node of another variant, or one of its
// own as well.
func (s scope) of(findings []detect.Finding) []detect.Finding {
	return slices.DeleteFunc(findings, func(f detect.Finding) bool {
		names := func(nodes []string) bool {
			return slices.ContainsFunc([]string{f.Object.String(), f.Owner, f.Announcer}, func(n string) bool { return slices.Contains(nodes, n) })
		}
		return names(s.others) && !names(s.own)
	})
}

// look is what came of asking the detectors once.
type look struct {
	began, ended time.Time
	unread       []string // sources that were to be read and were not, with the reasons
	findings     []detect.Finding
}

// noise says why a look was no quiet one; it is empty where it was. What is
// latent or a hint hurts nobody, and what is named is no noise.
func (l look) noise(named []framework.Finding) (noise string, blind bool) {
	loud := slices.DeleteFunc(framework.Unnamed(l.findings, named...), func(f detect.Finding) bool {
		return f.State == detect.Latent || f.State == detect.Hint
	})
	switch {
	case len(loud) > 0:
		return framework.DescribeFindings(loud), false
	case len(l.unread) > 0:
		return "not everything can be read: " + strings.Join(l.unread, "; "), true
	}
	return "", false
}

// sighting is a finding, and when the look was over that showed it first.
type sighting struct {
	detect.Finding
	at time.Time
}

// findingKey tells findings apart: what a detector says of an object may
// change its wording, and the pods that it concerns, from look to look.
type findingKey struct {
	detector, kind, owner, announcer, routers string
	object                                    detect.Object
	state                                     detect.State
}

func keyOf(f detect.Finding) findingKey {
	return findingKey{f.Detector, f.Kind, f.Owner, f.Announcer, strings.Join(f.Routers, ","), f.Object, f.State}
}

func startWatch(collect func(context.Context) snapshot.Snapshot, detectors []detect.Detector, every time.Duration, s scope, r *recorder, news func(look)) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{collect: collect, detectors: detectors, every: every, scope: s, clock: r, looked: r.look, news: news, stop: cancel, done: make(chan struct{})}
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

// Stop ends the watching, and waits for the last look. Of what was seen, that one is
// kept.
func (w *watch) Stop() {
	w.stop()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = slices.Delete(w.history, 0, max(0, len(w.history)-1))
}

func (w *watch) look(ctx context.Context) {
	now := w.collect(ctx)
	if ctx.Err() != nil {
		return // a snapshot that was cut short shows faults that are not there
	}
	l := w.add(now, w.clock.Now())
	if w.news != nil {
		w.news(l)
	}
}

// add asks the detectors about one more snapshot, of a look that was over then.
func (w *watch) add(now snapshot.Snapshot, ended time.Time) look {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.history) > 0 {
		changes := snapshot.Changes(w.history[len(w.history)-1], now)
		kept := min(len(changes), maxChanges-len(w.changes))
		w.changes, w.more = append(w.changes, changes[:kept]...), w.more+len(changes)-kept
	}
	w.history = append(w.history, now)
	w.history = slices.Delete(w.history, 0, max(0, len(w.history)-int(detect.History/w.every)))
	detect.Forget(w.history) // else two nodes with 2,400 flows each take a hundred MB
	l := look{began: now.Time, ended: ended, unread: now.Unread(), findings: w.scope.of(detect.Look(w.detectors, w.history))}
	if w.looked != nil {
		w.looked(now, l)
	}
	w.looks = append(w.looks, l)
	return l
}

// seen returns every finding of the looks that began at or after a moment, each
// with the first of these looks that showed it, oldest first.
func (w *watch) seen(since time.Time) []sighting {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []sighting
	known := map[findingKey]bool{}
	for _, l := range w.looks {
		if l.began.Before(since) {
			continue
		}
		for _, f := range l.findings {
			if !known[keyOf(f)] {
				known[keyOf(f)] = true
				all = append(all, sighting{f, l.ended})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b sighting) int {
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.Kind+a.Object.String(), b.Kind+b.Object.String()))
	})
	return all
}

// told is what all looks so far have shown.
func (w *watch) told() report.History {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := report.History{Looks: len(w.looks), Changes: slices.Clone(w.changes), More: w.more, Seen: []report.Seen{}}
	index := map[findingKey]int{}
	last := map[findingKey]int{} // the look that showed it last
	for n, l := range w.looks {
		for _, f := range l.findings {
			key := keyOf(f)
			i, known := index[key]
			if !known {
				i, index[key] = len(h.Seen), len(h.Seen)
				h.Seen = append(h.Seen, report.Seen{Detector: f.Detector, Kind: f.Kind, State: string(f.State), Object: f.Object.String()})
			}
			times := h.Seen[i].Times
			if known && last[key] >= n-1 {
				times[len(times)-1].Until = l.ended
			} else {
				h.Seen[i].Times = append(times, report.Span{From: l.ended, Until: l.ended})
			}
			last[key] = n
		}
	}
	return h
}

// now returns the findings of the last look, and the snapshot that it saw.
func (w *watch) now() ([]detect.Finding, snapshot.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.looks) == 0 {
		return nil, snapshot.Snapshot{}
	}
	return slices.Clone(w.looks[len(w.looks)-1].findings), w.history[len(w.history)-1]
}

// blindSince says which sources were not read in a look that began at or after
// a moment; empty if all were.
func (w *watch) blindSince(since time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range slices.Backward(w.looks) {
		if l.began.Before(since) {
			break
		}
		if len(l.unread) > 0 {
			return strings.Join(l.unread, "; ")
		}
	}
	return ""
}

// until waits for a look that began at or after a moment and meets a condition.
// The bound is for looks that take no time: where one takes seconds, on a busy
// machine, the detectors have fewLooks all the same.
func (w *watch) until(ctx context.Context, what string, since time.Time, bound time.Duration, met func([]detect.Finding) bool) error {
	deadline := w.clock.Now().Add(bound)
	var over *await.TimeoutError
	err := w.clock.Until(ctx, what, w.every/4, bound+slowLooks, func(context.Context) (bool, string, error) {
		last := !w.clock.Now().Before(deadline) && w.looksSince(since) >= fewLooks // before it is asked what that one showed
		findings, seen := w.now()
		saw := framework.DescribeFindings(findings)
		if !seen.Time.Before(since) && met(findings) {
			return true, "", nil
		}
		if last {
			over = &await.TimeoutError{What: what, Bound: bound, Saw: saw}
		}
		return last, saw, nil
	})
	if over != nil {
		return over
	}
	return err
}

const (
	// fewLooks is how many looks the detectors have to come to something, however
	// long a look takes: what is compared over time needs two, and one may be blind.
	fewLooks = 3
	// slowLooks bounds the wait for them: beside a lab with four guests on two CPUs
	// sources did not answer within a second.
	slowLooks = time.Minute
)

// looksSince counts the looks that began at or after a moment.
func (w *watch) looksSince(moment time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, l := range slices.Backward(w.looks) {
		if l.began.Before(moment) {
			break
		}
		n++
	}
	return n
}

// quiet returns since when every look has been quiet, up to the newest one and
// back to a moment: it read all that it was to read, and nothing but what is
// latent or named was found or on its way. The length is up to the beginning
// of the newest look. Where the newest look was not quiet, noise says why, and
// blind whether that was for want of reading.
func (w *watch) quiet(after time.Time, named []framework.Finding) (since time.Time, length time.Duration, noise string, blind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	noise, blind = "no look yet", false
	for i, l := range slices.Backward(w.looks) {
		if l.began.Before(after) {
			break
		}
		why, unread := l.noise(named)
		if why != "" {
			if i == len(w.looks)-1 {
				return time.Time{}, 0, why, unread
			}
			break
		}
		since, length, noise = l.began, w.looks[len(w.looks)-1].began.Sub(l.began), ""
	}
	return since, length, noise, blind
}

// blindError says that it could not be told whether the detectors are quiet,
// for a source was not read.
type blindError struct{ error }

// untilQuiet waits until the detectors have been quiet (see quiet) for quietFor,
// up to a look that began after the call. The quiet time may have begun before
// the call, but not before the moment after. It returns when it began. Where it
// does not come for want of reading, the error is a *blindError.
func (w *watch) untilQuiet(ctx context.Context, after time.Time, bound time.Duration, named ...framework.Finding) (time.Time, error) {
	called := w.clock.Now()
	var began time.Time
	var blind bool
	err := w.clock.Until(ctx, fmt.Sprintf("the detectors to be quiet for %s", quietFor), w.every/4, bound,
		func(context.Context) (bool, string, error) {
			since, length, noise, unread := w.quiet(after, named)
			if noise != "" {
				blind = unread
				return false, noise, nil
			}
			began = since
			return length >= quietFor && since.Add(length).After(called), "", nil
		})
	if err != nil && blind && ctx.Err() == nil {
		return time.Time{}, &blindError{err}
	}
	return began, err
}

// untilNamed waits until the detectors have come to each of the findings, in a
// look that began at or after a moment.
func (w *watch) untilNamed(ctx context.Context, wanted []framework.Finding, since time.Time, bound time.Duration) error {
	var names []string
	for _, f := range wanted {
		names = append(names, f.String())
	}
	return w.until(ctx, "the detectors to name "+strings.Join(names, "; "), since, bound, func(findings []detect.Finding) bool {
		return len(framework.Missing(wanted, findings)) == 0
	})
}
