package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Watcher reads a cluster and its routers until its context ends:
//
//	API server ──watches──▶ lists in memory ─┐
//	                                         ├─ read ─▶ history ─▶ detectors ─▶ what is new, what is gone
//	routers ◀── asked anew in each read ─────┘  (30 s)
//
// A read is of one moment, as in a lab: routers are always asked, so that no detector compares
// them with lists that came later, or takes one answer of theirs for two. It takes place
//
//   - every Interval;
//   - when something changes in the API server that may change routes;
//   - Between after a read that has not settled: a finding is pending, or only that read has it,
//     or lacks it.
//
// A read that has the same to say as the one before is not judged again, if that had settled, but
// for once in five minutes.
//
// As in Read, what one read alone has is not told, and what one read alone lacks is not gone.
type Watcher struct {
	// Interval is how often routers are read; Between is as in Read.
	Interval, Between time.Duration
	// Incidents is as for Judge.
	Incidents func(detect.Finding) []Incident
	// Tell is called with each event, in order of time. An error ends the watch.
	Tell func(Event) error

	began   time.Time
	reads   int
	history []snapshot.Snapshot
	judged  time.Time // of the snapshot that was judged last
	settled bool
	found   []detect.Finding // in the last read that was judged
	gaps    []detect.Gap
	// atFirst are the sentences of the first read's gaps: others came when something was lost.
	atFirst []string
	// told are the findings that hold, by ID, unread the reasons by the names of what is not read,
	// and notJudged the gaps by their sentences.
	told      map[string]*holding
	unread    map[string]string
	notJudged map[string]detect.Gap
}

// holding is a finding that was told.
type holding struct {
	Finding
	// unread is what its detector could not see in the last read that had it, and lacked how many
	// reads in a row have lacked it since.
	unread []string
	lacked int
}

// What an Event says.
const (
	FindingCame  = "finding"    // a finding holds, or has another state
	FindingGone  = "gone"       // it does not hold any more
	SourceUnread = "unread"     // something is not read any more
	SourceRead   = "read"       // it is read again
	GapCame      = "not-judged" // something is not judged
	GapGone      = "judged"     // it is judged again
)

// Event is what a watch has to tell.
type Event struct {
	Time time.Time `json:"time"`
	What string    `json:"event"`
	// Finding is of FindingCame and FindingGone.
	Finding *Finding `json:"finding,omitempty"`
	// Source is of SourceUnread and SourceRead, and Why the reason.
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
	// Gap is of GapCame and GapGone.
	Gap *detect.Gap `json:"gap,omitempty"`
}

const (
	// rejudge is how long what has not changed is not judged again. Judging 5,000 nodes takes
	// seconds of processor time.
	rejudge = 5 * time.Minute
	// confirmed is how many reads in a row decide that a finding is gone.
	confirmed = 2
)

// Run watches until ctx ends, and returns the last state: of findings, those that hold, and all
// that is not read. The error is the cause of ctx if it ended before anything was judged, and an
// *UnreadableError if the first read, or the last one, has no Nodes.
func (w *Watcher) Run(ctx context.Context, access Access) (Result, error) {
	collector, err := snapshot.Follow(ctx, oneRead{Access: access, unreachable: errNotReached}, within, sources(scope{routers: len(access.Routing) > 0})...)
	if err != nil {
		return Result{}, err
	}
	defer collector.Close()
	for {
		began := time.Now()
		s := collector.Collect(ctx)
		if ctx.Err() != nil {
			break
		}
		events := w.take(s)
		if w.reads == 1 && !s.Nodes.Read {
			break // the error says it
		}
		for _, e := range events {
			if err := w.Tell(e); err != nil {
				return Result{}, err
			}
		}
		wait := w.Interval
		if !w.settled {
			wait = min(w.Between, w.Interval)
		}
		if !w.rest(ctx, began, wait, collector.Changed()) {
			break
		}
	}
	return w.result(context.Cause(ctx))
}

// rest waits for a time, or less if something changes: at least Between from when the last read
// began, as changes come many at once. It is false if ctx ends.
func (w *Watcher) rest(ctx context.Context, began time.Time, wait time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
		_ = pause(ctx, time.Until(began.Add(w.Between)))
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// take takes a read in, and returns what it has to tell.
func (w *Watcher) take(s snapshot.Snapshot) []Event {
	if w.reads++; w.reads == 1 {
		w.began = s.Time
		w.told, w.unread, w.notJudged = map[string]*holding{}, map[string]string{}, map[string]detect.Gap{}
	}
	events := w.sources(s)
	if !s.Nodes.Read {
		// Nothing can be judged: what was found is neither there nor gone.
		w.settled = true
		return events
	}
	var last snapshot.Snapshot
	if n := len(w.history); n > 0 {
		last = w.history[n-1]
	}
	same := len(w.history) > 1 && s.Same(last)
	if same {
		s.Routers = last.Routers // so that equal ones are kept once
	}
	w.history = append(w.history, s)
	for len(w.history) > 2 && s.Time.Sub(w.history[1].Time) >= detect.History {
		w.history = slices.Delete(w.history, 0, 1)
	}
	if same && w.settled && s.Time.Sub(w.judged) < rejudge {
		return events
	}
	w.judged = s.Time
	before, gapsBefore := w.found, w.gaps
	w.found, w.gaps = detect.Run(slices.Concat(detectors, overTime), w.history), detect.Unjudged(s)
	if len(w.history) == 1 {
		for _, g := range w.gaps {
			w.atFirst = append(w.atFirst, g.Says)
		}
		w.settled = false
		return events
	}
	for i, g := range w.gaps { // what an earlier read had is missing now
		w.gaps[i].Open = g.Open || !slices.Contains(w.atFirst, g.Says)
	}
	w.settled = !slices.ContainsFunc(w.found, func(f detect.Finding) bool { return f.State == detect.Pending })
	return slices.Concat(events, w.findings(s, before), w.judging(s, gapsBefore))
}

// sources tells what is not read any more, and what is again.
func (w *Watcher) sources(s snapshot.Snapshot) []Event {
	var events []Event
	now := map[string]bool{}
	for _, text := range s.Unavailable() {
		name, why, _ := strings.Cut(text, ": ")
		now[name] = true
		if _, known := w.unread[name]; !known {
			events = append(events, Event{Time: s.Time, What: SourceUnread, Source: name, Why: why})
		}
		w.unread[name] = why
	}
	for _, name := range sorted(w.unread) {
		if !now[name] {
			events = append(events, Event{Time: s.Time, What: SourceRead, Source: name, Why: w.unread[name]})
			delete(w.unread, name)
		}
	}
	return events
}

// findings tells which are new, of those that two reads have, and which are gone, of those that two
// reads lack. One whose detector sees less than it did then is not gone.
func (w *Watcher) findings(s snapshot.Snapshot, before []detect.Finding) []Event {
	var events []Event
	var held []detect.Finding
	there, unread, worst := map[string]bool{}, unseen(s), map[string]int{}
	for _, f := range w.found {
		there[id(f)] = true
		both, in := hold(f, before)
		w.settled = w.settled && both.ID() == f.ID()
		if is, known := worst[id(f)]; in && (!known || mildness(both.State) < is) {
			worst[id(f)] = mildness(both.State)
		}
		if in {
			held = append(held, both)
		}
	}
	for _, both := range held {
		if is, left := worst[id(both)]; !left || is != mildness(both.State) {
			continue // of several with one ID the worst is told
		}
		delete(worst, id(both))
		t := identified(both, w.Incidents)
		was, known := w.told[t.ID]
		if known && t.State == detect.Pending { // since a read has lacked it
			t.State, t.Says = was.State, was.Says
		}
		w.told[t.ID] = &holding{Finding: t, unread: unread[t.Detector]}
		if !known || was.State != t.State {
			events = append(events, Event{Time: s.Time, What: FindingCame, Finding: &t})
		}
	}
	for _, id := range sorted(w.told) {
		was := w.told[id]
		blind := slices.ContainsFunc(unread[was.Detector], func(name string) bool { return !slices.Contains(was.unread, name) })
		if there[id] || blind {
			was.lacked = 0
			continue
		}
		if was.lacked++; was.lacked < confirmed {
			w.settled = false
			continue
		}
		delete(w.told, id)
		events = append(events, Event{Time: s.Time, What: FindingGone, Finding: &was.Finding})
	}
	return events
}

// unseen is what each detector could not see in a read.
func unseen(s snapshot.Snapshot) map[string][]string {
	all := map[string][]string{}
	for _, d := range slices.Concat(detectors, overTime) {
		all[d.Name()] = unread(s.Only(d.Reads()...))
	}
	return all
}

// sorted are the keys of a map.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// judging tells what two reads lack without being judged, and what is judged again.
func (w *Watcher) judging(s snapshot.Snapshot, before []detect.Gap) []Event {
	var events []Event
	now := map[string]bool{}
	for _, g := range w.gaps {
		now[g.Says] = true
		_, told := w.notJudged[g.Says]
		if told {
			w.notJudged[g.Says] = g
			continue
		}
		if !slices.ContainsFunc(before, func(b detect.Gap) bool { return b.Says == g.Says }) {
			w.settled = false
			continue
		}
		w.notJudged[g.Says] = g
		events = append(events, Event{Time: s.Time, What: GapCame, Gap: &g})
	}
	for _, says := range sorted(w.notJudged) {
		if g := w.notJudged[says]; !now[says] {
			delete(w.notJudged, says)
			events = append(events, Event{Time: s.Time, What: GapGone, Gap: &g})
		}
	}
	return events
}

// result is the last state, once something was judged.
func (w *Watcher) result(interrupted error) (Result, error) {
	if why, unread := w.unread[snapshot.Nodes.String()]; unread {
		return Result{}, &UnreadableError{why}
	}
	if len(w.history) < 2 {
		return Result{}, interrupted
	}
	last := w.history[len(w.history)-1]
	r, err := Judge([]snapshot.Snapshot{last}, w.Incidents)
	if err != nil {
		return Result{}, err
	}
	r.Began, r.Reads = w.began, w.reads
	r.Findings, r.Once, r.Unread, r.NotJudged = []Finding{}, []Finding{}, []string{}, []detect.Gap{}
	for _, id := range sorted(w.told) {
		r.Findings = append(r.Findings, w.told[id].Finding)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return mildness(a.State) - mildness(b.State) })
	for _, f := range w.found {
		if _, told := w.told[id(f)]; !told {
			r.Once = append(r.Once, identified(f, w.Incidents))
		}
	}
	for _, name := range sorted(w.unread) {
		r.Unread = append(r.Unread, name+": "+w.unread[name])
	}
	for _, text := range lacks(w.history[len(w.history)-2]) { // one look at a source is not enough
		if name, _, _ := strings.Cut(text, ": "); w.unread[name] == "" {
			r.Unread = append(r.Unread, text+" (in the read before the last)")
		}
	}
	r.NotJudged = append(r.NotJudged, w.gaps...)
	return r, nil
}

// String is the event in one line.
func (e Event) String() string {
	line := e.Time.UTC().Format(time.RFC3339) + " "
	switch e.What {
	case FindingCame:
		return line + fmt.Sprintf("+ %s %s %s, %s: %s", e.Finding.State, e.Finding.ID, e.Finding.Detector, e.Finding.Kind, e.Finding.Says)
	case FindingGone:
		return line + fmt.Sprintf("- gone %s %s, %s: %s", e.Finding.ID, e.Finding.Detector, e.Finding.Kind, e.Finding.Object)
	case SourceUnread:
		line += fmt.Sprintf("+ not read: %s: %s", e.Source, e.Why)
		if Forbidden(e.Why) {
			line += " (" + RoleHint + ")"
		}
		return line
	case SourceRead:
		return line + "- not read: " + e.Source
	case GapCame:
		return line + "+ not judged: " + e.Gap.Says
	default:
		return line + "- not judged: " + e.Gap.Says
	}
}
