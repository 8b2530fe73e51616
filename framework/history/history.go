package history

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// History is the history of one variant's run. Entries are added by the run, or read
// from a file; several goroutines may do so. The zero value is one that is kept in
// memory alone, with the machine's clock.
type History struct {
	file file
	zero time.Time // when the run began, with its monotonic reading

	mu    sync.Mutex
	begin Begin
	next  int // number of the next entry
	steps []at[Step]
	acts  []at[Act]
	marks []at[Mark]
	polls []at[Poll]
	// packets are what was known of the probes' packets, at some moments.
	packets []at[[]probe.Stored]
}

// at is a part of an entry, with the entry's number and time.
type at[T any] struct {
	number int
	time   time.Time
	part   T
}

// Create begins the history of a run that began at zero, and its file in a folder;
// without a folder there is none. What is wrong with the file is told by Failed.
func (h *History) Create(dir string, zero time.Time, b Begin) {
	h.zero = zero
	if dir != "" {
		h.file.create(dir)
	}
	b.Schema = Schema
	h.add(Entry{Begin: &b})
}

// Begin is the first entry.
func (h *History) Begin() Begin { return h.begin }

// Now is the time on the clock that the machine had when the run began: a clock that
// is set in mid-run does not tear the run's times apart.
func (h *History) Now() time.Time { return h.Wall(time.Now()) }

// Wall is a time with a monotonic reading on the clock of Now, without the reading.
func (h *History) Wall(t time.Time) time.Time {
	if t.IsZero() || h.zero.IsZero() { // nothing has begun
		return t
	}
	return h.zero.Add(t.Sub(h.zero)).Round(0)
}

// Monotonic is a time of Now with the monotonic reading that it had, for comparisons with
// times that have one.
func (h *History) Monotonic(t time.Time) time.Time {
	if t.IsZero() || h.zero.IsZero() {
		return t
	}
	return h.zero.Add(t.Sub(h.zero.Round(0)))
}

// Failed says what was wrong with the file so far.
func (h *History) Failed() error { return h.file.failed() }

// Close ends the file, and returns what was wrong with it, once.
func (h *History) Close() error { return h.file.close() }

// BeginStep notes that a step begins.
func (h *History) BeginStep(id framework.StepID) { h.add(Entry{Step: &Step{ID: id}}) }

// EndStep notes the end of a step, and why it could not be carried out, if it could not.
func (h *History) EndStep(id framework.StepID, err error, interrupted bool) {
	s := Step{ID: id, Ended: true, Interrupted: interrupted}
	if err != nil {
		s.Error = err.Error()
		s.Panicked = errors.As(err, new(*PanicError))
	}
	h.add(Entry{Step: &s})
}

// PanicError is a panic of a step.
type PanicError struct{ Value any }

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Do does something to the lab, or asks it, and notes what came of it: do fills in the
// act's results.
func (h *History) Do(what Action, part string, do func(*Act)) Act {
	a := Act{What: what, Part: part, Began: h.Now()}
	returned := false
	defer func() {
		if !returned { // it panics
			a.Error = "it panicked"
			h.add(Entry{Act: &a})
		}
	}()
	do(&a)
	returned = true
	if a.Err != nil {
		a.Error = a.Err.Error()
	}
	h.add(Entry{Act: &a})
	return a
}

// Mark notes a moment of the step under way.
func (h *History) Mark(m Mark) { h.add(Entry{Mark: &m}) }

// MarkPolls notes a moment at which a wait for polls is over that saw a view last.
func (h *History) MarkPolls(m Mark, saw View) {
	m.Polls = saw.polls
	h.Mark(m)
}

// MarkPackets notes a moment, with what is known then of the packets.
func (h *History) MarkPackets(m Mark, timelines []probe.Timeline) {
	h.AddPackets(timelines)
	h.Mark(m)
}

// AddPackets notes what is known of the probes' packets.
func (h *History) AddPackets(timelines []probe.Timeline) {
	var e Entry
	for i := range timelines {
		e.Probes = append(e.Probes, timelines[i].Store(h.Wall))
	}
	if len(e.Probes) > 0 {
		h.add(e)
	}
}

// AddPoll notes a poll, and the snapshot that it was about.
func (h *History) AddPoll(s snapshot.Snapshot, p Poll) {
	p.Began, p.Ended = h.Wall(p.Began), h.Wall(p.Ended)
	s.Time = p.Began
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file.write(Entry{At: p.Ended, Poll: &StoredPoll{s, p.Findings}})
	h.keepPoll(p)
}

// add stores an entry and keeps it. Entries have the same order in the file as in memory.
func (h *History) add(e Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = h.Now()
	h.file.write(e)
	h.keep(e)
}

// keepPoll keeps a poll in memory. Findings are the same for minutes; they are kept once.
func (h *History) keepPoll(p Poll) {
	if n := len(h.polls); n > 0 && reflect.DeepEqual(h.polls[n-1].part.Findings, p.Findings) {
		p.Findings = h.polls[n-1].part.Findings
	}
	h.polls = append(h.polls, at[Poll]{h.next, p.Ended, p})
	h.next++
}

// keep keeps an entry in memory that is no poll.
func (h *History) keep(e Entry) {
	switch {
	case e.Begin != nil:
		h.begin = *e.Begin
	case e.Step != nil:
		h.steps = append(h.steps, at[Step]{h.next, e.At, *e.Step})
	case e.Act != nil:
		h.acts = append(h.acts, at[Act]{h.next, e.At, *e.Act})
	case e.Mark != nil:
		h.marks = append(h.marks, at[Mark]{h.next, e.At, *e.Mark})
	case e.Probes != nil:
		h.packets = append(h.packets, at[[]probe.Stored]{h.next, e.At, e.Probes})
	}
	h.next++
}

// OtherPolls are the polls of a stored run in which the detectors find something else
// today than they did then.
type OtherPolls struct {
	All, Differ int
	// At is when the first of them was over, Number its number from 1, and Then and Now
	// what it found in one of the two cases only.
	At        time.Time
	Number    int
	Then, Now Poll
}

// Read reads the record in a folder, and asks detectors anew about each snapshot.
// Restore is what each line goes through first, and may be nil.
func Read(dir string, restore func([]byte) []byte, d *Detection) (*History, OtherPolls, error) {
	h := &History{}
	var others OtherPolls
	err := read(filepath.Join(dir, FileName), orAsIs(restore), func(e Entry) bool {
		if e.Poll == nil {
			h.keep(e)
			return true
		}
		p := d.Poll(e.Poll.Snapshot, e.At)
		others.compare(e.Poll.Findings, p)
		h.keepPoll(p)
		return true
	})
	return h, others, err
}

// compare notes whether a poll finds something else than it did then.
func (o *OtherPolls) compare(then []Finding, now Poll) {
	o.All++
	gone, come := without(then, now.Findings), without(now.Findings, then)
	if len(gone)+len(come) == 0 {
		return
	}
	if o.Differ++; o.Differ == 1 {
		o.At, o.Number = now.Ended, o.All
		o.Then, o.Now = Poll{Findings: gone}, Poll{Findings: come}
	}
}

// without are the findings that are none of the others.
func without(findings, others []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool {
		return slices.ContainsFunc(others, func(o Finding) bool { return o.ID() == f.ID() })
	})
}
