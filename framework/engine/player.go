package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// errNotOnRecord is why something cannot be judged that today's engine would do, and
// the stored run did not.
var errNotOnRecord = errors.New("the stored run did not do it")

// player tells a variant's run what was written of a stored one. It is its clock as
// well: time goes on by waiting, and jumps to what was done. A wait is over when it
// was in the stored run, for what is seen later came of what was done then.
type player struct {
	begin  beginEntry
	events []entry // steps and calls, in order
	looks  []entry
	probes []entry

	step    string            // under way
	answers map[string]answer // the last of each call of the step
	now     time.Time
	next    int // in events: the first that has not been told
	shown   int // looks that the watch has been given
	sets    []time.Time
	watch   *watch
	ctx     context.Context
	cancel  context.CancelFunc
	missing []string // what was not on record
}

// newPlayer reads the record in a folder.
func newPlayer(dir string, restore func([]byte) []byte) (*player, error) {
	entries, err := readRecord(filepath.Join(dir, recordName), math.MaxInt, restore)
	if err != nil {
		return nil, err
	}
	p := &player{begin: *entries[0].Begin, now: entries[0].At, answers: map[string]answer{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, e := range entries {
		switch {
		case e.Step != nil, e.Wait != nil:
			p.events = append(p.events, e)
		case e.Call != nil:
			p.events = append(p.events, e)
			if e.Call.Name == callStartProbes && e.Call.Error == "" {
				p.sets = append(p.sets, e.At)
			}
		case e.Look != nil:
			p.looks = append(p.looks, e)
		case e.Probes != nil:
			p.probes = append(p.probes, e)
		}
	}
	return p, nil
}

// began is when an event began.
func began(e entry) time.Time {
	if e.Call != nil {
		return e.Call.Began
	}
	return e.At
}

func (p *player) Now() time.Time { return p.now }

// moveTo sets the clock, and shows the watch what it has seen by then.
func (p *player) moveTo(moment time.Time) {
	p.now = moment
	for ; p.watch != nil && p.shown < len(p.looks) && !p.looks[p.shown].At.After(moment); p.shown++ {
		e := p.looks[p.shown]
		p.watch.add(e.Look.Snapshot, e.At)
	}
}

// Until looks at the moment at which the stored run's wait was over, if it was met
// then; else, and where each look asks the lab, it looks from time to time up to then.
func (p *player) Until(ctx context.Context, what string, interval, bound time.Duration, cond await.Condition) error {
	wait, asks := p.wait()
	end := p.now
	if wait != nil {
		end = wait.At
	} else if p.next < len(p.events) {
		end = began(p.events[p.next])
	}
	if wait != nil && wait.Wait.Met && !asks {
		p.moveTo(end)
	}
	saw := "nothing yet"
	for {
		at := p.next
		done, now, err := cond(p.ctx)
		switch {
		case err != nil && p.ctx.Err() == nil:
			saw = err.Error()
		case now != "":
			saw = now
		}
		// What is asked of the lab moves the clock by itself.
		if moved := p.next != at; !done && p.ctx.Err() == nil && (moved || p.now.Before(end)) {
			if to := p.now.Add(interval); !moved && to.Before(end) {
				p.moveTo(to)
			} else if !moved {
				p.moveTo(end)
			}
			continue
		}
		p.passed(wait)
		switch {
		case wait != nil && wait.Wait.Interrupted:
			p.cancel()
			fallthrough
		case p.ctx.Err() != nil:
			return fmt.Errorf("waiting for %s: %w (last seen: %s)", what, context.Canceled, saw)
		case done:
			return nil
		}
		return &await.TimeoutError{What: what, Bound: bound, Saw: saw}
	}
}

// wait is the end of the wait that comes next in the step that is under way, nil if
// there is none; asks tells whether the lab was asked meanwhile.
func (p *player) wait() (end *entry, asks bool) {
	for i := p.next; i < len(p.events) && p.events[i].Step == nil; i++ {
		if p.events[i].Wait != nil {
			return &p.events[i], asks
		}
		asks = true
	}
	return nil, false
}

// passed goes on behind the end of a wait.
func (p *player) passed(wait *entry) {
	for i := p.next; wait != nil && i < len(p.events); i++ {
		if &p.events[i] == wait {
			p.next = i + 1
			p.moveTo(wait.At)
			return
		}
	}
}

// find goes to the next event that is meant, if there is one before the end of the
// step that is under way, or is that end.
func (p *player) find(is func(entry) bool) (entry, bool) {
	for i := p.next; i < len(p.events); i++ {
		if is(p.events[i]) {
			p.next = i + 1
			return p.events[i], true
		}
		if s := p.events[i].Step; s != nil && s.Ended && s.Name == p.step {
			break
		}
	}
	return entry{}, false
}

func (p *player) call(_ context.Context, name string, _ func(context.Context) answer) answer {
	e, there := p.find(func(e entry) bool { return e.Call != nil && e.Call.Name == name })
	if last, asked := p.answers[name]; !there && asked {
		return last // the engine asks once more than it did then
	}
	if !there {
		p.missing = append(p.missing, name)
		return answer{err: fmt.Errorf("%s: %w", name, errNotOnRecord)}
	}
	p.moveTo(e.Call.Began)
	p.moveTo(e.At)
	a := e.Call.answer
	if a.Error != "" {
		a.err = errors.New(a.Error)
	}
	if a.Interrupted {
		p.cancel()
	}
	p.answers[name] = a
	if a.Panicked {
		panic(a.Error)
	}
	return a
}

// begins is false for a step that the stored run did not come to the end of.
func (p *player) begins(step string) bool {
	named := func(ended bool) func(entry) bool {
		return func(e entry) bool { return e.Step != nil && e.Step.Name == step && e.Step.Ended == ended }
	}
	if !slices.ContainsFunc(p.events[p.next:], named(true)) {
		p.missing = append(p.missing, step)
		return false
	}
	p.step, p.answers = step, map[string]answer{}
	e, there := p.find(named(false))
	if there {
		p.moveTo(e.At)
	}
	return there
}

func (p *player) ends(step string, _ bool) {
	e, there := p.find(func(e entry) bool { return e.Step != nil && e.Step.Name == step && e.Step.Ended })
	if there {
		p.moveTo(e.At)
	}
	p.step = ""
}

// set are the probes that were started last.
func (p *player) set() *probe.Played {
	var from, until time.Time
	for _, started := range p.sets {
		if !started.After(p.now) {
			from = started
		} else if until.IsZero() {
			until = started
		}
	}
	var known []entry
	for _, e := range p.probes {
		if !e.At.Before(from) && (until.IsZero() || e.At.Before(until)) {
			known = append(known, e)
		}
	}
	return probe.Play(p, func(moment time.Time) []probe.Timeline {
		if len(known) == 0 {
			return nil
		}
		// The next that was written: what comes after it was not known.
		i := slices.IndexFunc(known, func(e entry) bool { return !e.At.Before(moment) })
		if i < 0 {
			i = len(known) - 1
		}
		var all []probe.Timeline
		for _, s := range known[i].Probes {
			all = append(all, s.At(moment))
		}
		return all
	})
}

// watching is the watch of the stored looks, with today's detectors.
func (p *player) watching(detectors []detect.Detector, every time.Duration, s scope) *watch {
	done := make(chan struct{})
	close(done)
	p.watch = &watch{detectors: detectors, every: every, scope: s, clock: p, stop: func() {}, done: done}
	p.moveTo(p.now)
	return p.watch
}

// storedReader is the reader of a run that is judged again: nothing is read.
type storedReader struct{ timeout time.Duration }

func (storedReader) Collect(context.Context) snapshot.Snapshot { return snapshot.Snapshot{} }
func (r storedReader) Timeout() time.Duration                  { return r.timeout }
func (storedReader) Close() error                              { return nil }
