package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Finding is a finding of a detector.
type Finding = detect.Finding

// View is a history up to a moment. It does not change when entries are added later.
type View struct {
	entries []Entry
	polls   int // the number of the first entry whose poll is not in the view
	Time    time.Time
}

// View is the history so far.
func (h *History) View() View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return View{h.entries, len(h.entries), h.Now()}
}

// StepView has the entries of one step.
type StepView struct {
	entries      []Entry // of the history, up to the end of the step
	first        int     // number of the step's first entry
	Began, Ended time.Time
	// Error, Interrupted and Panicked are as in Step.
	Error                 string
	Interrupted, Panicked bool
}

// Step returns a step; false if it has not ended.
func (h *History) Step(id framework.StepID) (StepView, bool) {
	s := h.UnderWay(id)
	for n, e := range s.entries[s.first:] {
		if e.Step != nil && e.Step.ID == id && e.Step.Ended {
			s.entries, s.Ended = s.entries[:s.first+n+1], e.At
			s.Error, s.Interrupted, s.Panicked = e.Step.Error, e.Step.Interrupted, e.Step.Panicked
			return s, true
		}
	}
	return s, false
}

// PacketsAt are the packets of the probes as they were stored last before a moment; nil if none were.
func (h *History) PacketsAt(moment time.Time) []probe.Stored {
	for _, e := range slices.Backward(h.View().entries) {
		if e.Probes != nil && !e.At.After(moment) {
			return e.Probes
		}
	}
	return nil
}

// UnderWay returns a step that has not ended, up to now; without entries if it has not begun.
func (h *History) UnderWay(id framework.StepID) StepView {
	entries := h.View().entries
	for n, e := range entries {
		if e.Step != nil && e.Step.ID == id && !e.Step.Ended {
			return StepView{entries: entries, first: n, Began: e.At}
		}
	}
	return StepView{}
}

// Act is the last action of a kind in the step, with its end; false if there is none.
func (s StepView) Act(what Action, part string) (a Act, ended time.Time, there bool) {
	for _, e := range slices.Backward(s.entries[s.first:]) {
		if e.Act != nil && e.Act.What == what && e.Act.Part == part {
			return *e.Act, e.At, true
		}
	}
	return Act{}, time.Time{}, false
}

// At is the history up to the last mark of this moment in the step; false if there is none.
func (s StepView) At(m Moment, part string) (View, Mark, bool) {
	for n, e := range slices.Backward(s.entries) {
		if n >= s.first && e.Mark != nil && e.Mark.Moment == m && e.Mark.Part == part {
			return View{s.entries[:n], min(max(0, cmp.Or(e.Mark.Polls, n)), n), e.At}, *e.Mark, true
		}
	}
	return View{}, Mark{}, false
}

// Timelines are the probes' timelines as far as they were known at that moment.
func (v View) Timelines() []probe.Timeline {
	for _, e := range slices.Backward(v.entries) {
		if e.Probes != nil {
			return each.Of(e.Probes, func(s probe.Stored) probe.Timeline { return s.At(e.At) })
		}
	}
	return nil
}

// since are the polls that began at or after a moment, oldest first.
func (v View) since(moment time.Time) (polls []*Poll) {
	for _, e := range slices.Backward(v.entries[:v.polls]) {
		if e.poll == nil {
			continue
		}
		if e.poll.Began.Before(moment) {
			break
		}
		polls = append(polls, e.poll)
	}
	slices.Reverse(polls)
	return polls
}

// Last is the newest poll; false if there is none.
func (v View) Last() (Poll, bool) {
	for _, e := range slices.Backward(v.entries[:v.polls]) {
		if e.poll != nil {
			return *e.poll, true
		}
	}
	return Poll{}, false
}

// Findings are the findings of the newest poll.
func (v View) Findings() []Finding {
	last, _ := v.Last()
	return slices.Clone(last.Findings)
}

// WholePollsSince counts the polls that began at or after a moment and could read all sources.
func (v View) WholePollsSince(moment time.Time) int {
	return len(each.Where(v.since(moment), func(p *Poll) bool { return len(p.Unavailable) == 0 }))
}

// NotIsolated says since when packets of the lab could leave the machine; empty if they never
// could.
func (v View) NotIsolated() string {
	for _, p := range v.since(time.Time{}) {
		for _, source := range p.Unavailable {
			if source.Source == snapshot.Isolation {
				return fmt.Sprintf("from %s on: %s", p.Began.Format(time.TimeOnly), source)
			}
		}
	}
	return ""
}

// Sighting is a finding, and the end of the first poll that had it.
type Sighting struct {
	Finding
	At time.Time
}

// Seen returns every finding of the polls that began at or after a moment, each once, in
// the order in which they appeared.
func (v View) Seen(since time.Time) []Sighting {
	var all []Sighting
	seen := map[detect.ID]bool{}
	for _, p := range v.since(since) {
		for _, f := range p.Findings {
			if !seen[f.ID()] {
				seen[f.ID()] = true
				all = append(all, Sighting{f, p.Ended})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Sighting) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Kind+a.Object.String(), b.Kind+b.Object.String()))
	})
	return all
}

// Active are the active findings of the polls that began at or after a moment, without the
// expected ones.
func (v View) Active(since time.Time, expected ...framework.Finding) []Finding {
	active := each.Where(v.Seen(since), func(s Sighting) bool { return s.State == detect.Active })
	return framework.Unexpected(each.Of(active, func(s Sighting) Finding { return s.Finding }), expected...)
}

// UnavailableSince describes the unavailable sources of the newest poll that began at or after a
// moment and lacks any; empty if no poll does.
func (v View) UnavailableSince(since time.Time) string {
	for _, p := range slices.Backward(v.since(since)) {
		if len(p.Unavailable) > 0 {
			return snapshot.Sentences(p.Unavailable)
		}
	}
	return ""
}

// Span is a time in which no poll has an unexpected active or pending finding, or an
// unavailable source.
type Span struct {
	// Since is the beginning of the first poll of the span; zero if the newest poll is not in
	// it. For is the time from Since to the beginning of the newest poll.
	Since time.Time
	For   time.Duration
	// Reason is why the poll before the span is not in it; empty if there is none.
	// Unavailable is set if the reason is an unavailable source.
	Reason      string
	Unavailable bool
}

// WithoutFindings is the span that ends with the newest poll. It begins at or after a moment.
func (v View) WithoutFindings(moment time.Time, expected ...framework.Finding) Span {
	polls := v.since(moment)
	q := Span{Reason: "no poll yet"}
	for _, p := range slices.Backward(polls) {
		if why, unavailable := p.active(expected); why != "" {
			q.Reason, q.Unavailable = why, unavailable
			break
		}
		q = Span{Since: p.Began, For: polls[len(polls)-1].Began.Sub(p.Began)}
	}
	return q
}

// active is why a poll is not part of a Span; empty if it is.
func (p Poll) active(expected []framework.Finding) (reason string, unavailable bool) {
	active := slices.DeleteFunc(framework.Unexpected(p.Findings, expected...), func(f Finding) bool {
		return f.State == detect.Latent || f.State == detect.Hint
	})
	switch {
	case len(active) > 0:
		return framework.DescribeFindings(active), false
	case len(p.Unavailable) > 0:
		return "a source is unavailable: " + snapshot.Sentences(p.Unavailable), true
	}
	return "", false
}

// Polls are all polls of the view, oldest first.
func (v View) Polls() []Poll {
	return each.Of(v.since(time.Time{}), func(p *Poll) Poll { return *p })
}

// Presence is a finding and the times at which it was there.
type Presence struct {
	Finding
	// Times are in order. A finding of two polls in a row was also there between them.
	Times []Period
}

// Period is a time from the first to the last poll with a finding.
type Period struct{ From, Until time.Time }

// Presences are the findings of all polls, in the order in which they appeared.
func (h *History) Presences() []Presence {
	var all []Presence
	index := map[detect.ID]int{}
	last := map[detect.ID]int{} // the number of the last poll with the finding
	for n, p := range h.View().Polls() {
		for _, f := range p.Findings {
			key := f.ID()
			i, found := index[key]
			if !found {
				i, index[key] = len(all), len(all)
				all = append(all, Presence{Finding: f})
			}
			if times := all[i].Times; found && last[key] >= n-1 {
				times[len(times)-1].Until = p.Ended
			} else {
				all[i].Times = append(times, Period{p.Ended, p.Ended})
			}
			last[key] = n
		}
	}
	return all
}

// Changes are the changes of sessions, routes and addresses from poll to poll, oldest first.
// more is the number of further changes, which are in the record only.
func (h *History) Changes() (changes []snapshot.Change, more int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.changes), h.more
}

// Traffic has the newest timeline of each start of a probe, in the order of the starts.
func (h *History) Traffic() []probe.Timeline {
	type start struct {
		probe string
		at    int64 // in nanoseconds
	}
	type record struct {
		probe.Stored
		until time.Time
	}
	index := map[start]int{}
	var newest []record
	for _, e := range h.View().entries {
		for _, s := range e.Probes {
			key := start{s.Probe.Name, s.Started.UnixNano()}
			i, found := index[key]
			switch {
			case s.Started.IsZero():
			case found:
				newest[i] = record{s, e.At}
			default:
				index[key] = len(newest)
				newest = append(newest, record{s, e.At})
			}
		}
	}
	return each.Of(newest, func(r record) probe.Timeline { return r.At(r.until) })
}
