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
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// History is the history of one variant's run. Several goroutines may add entries. The
// zero value is kept in memory only and uses the machine's clock.
type History struct {
	file file
	zero time.Time // when the run began, with its monotonic reading

	mu      sync.Mutex
	begin   Begin
	entries []Entry // which do not change: views share them
	// last is the newest poll, and newest its snapshot. changes are the first maxChanges changes
	// from one snapshot to the next, and more is the number of further changes.
	last    *Poll
	newest  snapshot.Snapshot
	changes []snapshot.Change
	more    int
}

// Create begins the history of a run that began at zero, and its file in a folder; if dir
// is empty there is no file. Failed returns errors of the file.
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

// Now is the start of the run plus the monotonic time since, so that setting the machine's
// clock during the run has no effect.
func (h *History) Now() time.Time { return h.Wall(time.Now()) }

// Wall converts a time with a monotonic reading to the clock of Now.
func (h *History) Wall(t time.Time) time.Time {
	if t.IsZero() || h.zero.IsZero() { // nothing has begun
		return t
	}
	return h.zero.Add(t.Sub(h.zero)).Round(0)
}

// Monotonic is the inverse of Wall, for comparisons with times with a monotonic reading.
func (h *History) Monotonic(t time.Time) time.Time {
	if t.IsZero() || h.zero.IsZero() {
		return t
	}
	return h.zero.Add(t.Sub(h.zero.Round(0)))
}

// Failed returns the first error of the file.
func (h *History) Failed() error {
	h.file.mu.Lock()
	defer h.file.mu.Unlock()
	return h.file.err
}

// Close closes the file and forgets the newest snapshot. It returns the errors of the file, once.
func (h *History) Close() error {
	h.mu.Lock()
	h.newest = snapshot.Snapshot{}
	h.mu.Unlock()
	return h.file.close()
}

// BeginStep adds the beginning of a step.
func (h *History) BeginStep(id framework.StepID) { h.add(Entry{Step: &Step{ID: id}}) }

// EndStep adds the end of a step. err is why it could not be carried out, or nil.
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

// Do carries out an action and adds it: do fills in the results.
func (h *History) Do(what Action, part string, do func(*Act)) Act {
	a := Act{What: what, Part: part, Began: h.Now()}
	returned := false
	defer func() {
		if !returned { // do panics
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

// Mark adds a moment of the current step.
func (h *History) Mark(m Mark) { h.add(Entry{Mark: &m}) }

// MarkPolls adds the moment at which a wait for polls ended. saw is the last view of the wait.
func (h *History) MarkPolls(m Mark, saw View) {
	m.Polls = saw.polls
	h.Mark(m)
}

// AddPackets adds what is known of the probes' packets.
func (h *History) AddPackets(timelines []probe.Timeline) {
	if len(timelines) > 0 {
		h.add(Entry{Probes: each.Of(timelines, func(t probe.Timeline) probe.Stored { return t.Store(h.Wall) })})
	}
}

// AddPoll adds a poll and its snapshot.
func (h *History) AddPoll(s snapshot.Snapshot, p Poll) {
	p.Began, p.Ended = h.Wall(p.Began), h.Wall(p.Ended)
	s.Time = p.Began
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file.write(Entry{At: p.Ended, Poll: &StoredPoll{s, p.Findings}})
	h.keepPoll(s, p)
}

func (h *History) add(e Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = h.Now()
	h.file.write(e)
	h.keep(e)
}

// maxChanges bounds the changes in memory. The first ones are enough to show a layer that
// flaps in every snapshot.
const maxChanges = 5000

// keepPoll keeps a poll in memory, and what its snapshot changes. Equal findings of successive
// polls share memory.
func (h *History) keepPoll(s snapshot.Snapshot, p Poll) {
	if last := h.last; last != nil {
		changes := snapshot.Changes(h.newest, s)
		room := min(len(changes), maxChanges-len(h.changes))
		h.changes, h.more = append(h.changes, changes[:room]...), h.more+len(changes)-room
		if reflect.DeepEqual(last.Findings, p.Findings) {
			p.Findings = last.Findings
		}
		if reflect.DeepEqual(last.Routers, p.Routers) {
			p.Routers = last.Routers
		}
	}
	h.newest, h.last = s, &p
	h.entries = append(h.entries, Entry{At: p.Ended, poll: &p})
}

func (h *History) keep(e Entry) {
	if e.Begin != nil {
		h.begin = *e.Begin
	}
	h.entries = append(h.entries, e)
}

// OtherPolls are the polls of a stored run whose findings differ when the detectors run again.
type OtherPolls struct {
	All, Differ int
	// At is the end of the first such poll, and Number its number from 1. Then are its findings that
	// only the stored run has, and Now the findings that only today's detectors have.
	At        time.Time
	Number    int
	Then, Now []Finding
}

// Read reads the record in a folder, and runs the detectors again on each snapshot.
func Read(dir string, d *Detection) (*History, OtherPolls, error) {
	var others OtherPolls
	h, err := load(dir, func(s StoredPoll, ended time.Time) Poll {
		p := d.Poll(s.Snapshot, ended)
		others.compare(s.Findings, p)
		return p
	})
	return h, others, err
}

// Load reads the record in a folder with the findings of that time.
func Load(dir string) (*History, error) {
	return load(dir, func(s StoredPoll, ended time.Time) Poll {
		return Poll{Began: s.Snapshot.Time, Ended: ended, Unavailable: s.Snapshot.Unavailable(), Findings: s.Findings}
	})
}

func load(dir string, poll func(s StoredPoll, ended time.Time) Poll) (*History, error) {
	h := &History{}
	err := read(filepath.Join(dir, FileName), func(e Entry) bool {
		if e.Poll == nil {
			h.keep(e)
		} else {
			h.keepPoll(e.Poll.Snapshot, poll(*e.Poll, e.At))
		}
		return true
	})
	return h, err
}

func (o *OtherPolls) compare(then []Finding, now Poll) {
	o.All++
	onlyThen, onlyNow := without(then, now.Findings), without(now.Findings, then)
	if len(onlyThen)+len(onlyNow) == 0 {
		return
	}
	if o.Differ++; o.Differ == 1 {
		o.At, o.Number = now.Ended, o.All
		o.Then, o.Now = onlyThen, onlyNow
	}
}

func without(findings, others []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool {
		return slices.ContainsFunc(others, func(o Finding) bool { return o.ID() == f.ID() })
	})
}

// Detection runs detectors on one snapshot after the other.
type Detection struct {
	Detectors []detect.Detector
	Every     time.Duration // from one snapshot to the next
	Scope     Scope
	// KeepRouters makes each poll keep the state of the routers, to measure what changed on
	// them. Otherwise polls hold findings alone, which take little memory.
	KeepRouters bool

	snapshots []snapshot.Snapshot
}

// Scope is the part of a lab that belongs to a variant: all but the nodes of Others.
type Scope struct{ Own, Others []string }

// filter returns the findings that name no node of another variant, or a node of this variant as well.
func (s Scope) filter(findings []detect.Finding) []detect.Finding {
	return slices.DeleteFunc(findings, func(f detect.Finding) bool {
		names := func(nodes []string) bool {
			named := []string{f.Object.String(), f.Owner, f.Announcer}
			return slices.ContainsFunc(named, func(n string) bool { return slices.Contains(nodes, n) })
		}
		return names(s.Others) && !names(s.Own)
	})
}

// Poll runs the detectors on the next snapshot, which was complete at ended.
func (d *Detection) Poll(now snapshot.Snapshot, ended time.Time) Poll {
	d.snapshots = append(d.snapshots, now)
	d.snapshots = slices.Delete(d.snapshots, 0, max(0, len(d.snapshots)-int(detect.History/d.Every)))
	detect.Forget(d.snapshots) // else two nodes with 2,400 flows each take a hundred MB
	p := Poll{Began: now.Time, Ended: ended, Unavailable: now.Unavailable(), Findings: d.Scope.filter(detect.Run(d.Detectors, d.snapshots))}
	if d.KeepRouters {
		p.Routers = now.Routers
	}
	return p
}

// Last is the newest snapshot; empty before the first.
func (d *Detection) Last() snapshot.Snapshot {
	if len(d.snapshots) == 0 {
		return snapshot.Snapshot{}
	}
	return d.snapshots[len(d.snapshots)-1]
}

// End forgets all snapshots but the newest.
func (d *Detection) End() { d.snapshots = slices.Delete(d.snapshots, 0, max(0, len(d.snapshots)-1)) }
