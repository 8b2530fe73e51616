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
	h *History
	// number is the number of the first entry after the view, and polls the number of the
	// first poll after it.
	number, polls int
	Time          time.Time
}

// View is the history so far.
func (h *History) View() View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return View{h, h.next, h.next, h.Now()}
}

// StepView has the entries of one step.
type StepView struct {
	h            *History
	first, after int // numbers of its first entry, and of the first one after it
	Began, Ended time.Time
	// Error, Interrupted and Panicked are as in Step.
	Error                 string
	Interrupted, Panicked bool
}

// Step returns a step; false if it has not ended.
func (h *History) Step(id framework.StepID) (StepView, bool) {
	s, began := h.begun(id)
	if !began {
		return s, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.steps {
		if e.number > s.first && e.part.ID == id && e.part.Ended {
			s.after, s.Ended = e.number+1, e.time
			s.Error, s.Interrupted, s.Panicked = e.part.Error, e.part.Interrupted, e.part.Panicked
			return s, true
		}
	}
	return s, false
}

// PacketsAt is what was known of the probes' packets at a moment, as it was stored last before
// it; nil if nothing was.
func (h *History) PacketsAt(moment time.Time) []probe.Stored {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range slices.Backward(h.packets) {
		if !e.time.After(moment) {
			return e.part
		}
	}
	return nil
}

// UnderWay returns a step that has not ended, up to now.
func (h *History) UnderWay(id framework.StepID) StepView {
	s, _ := h.begun(id)
	return s
}

func (h *History) begun(id framework.StepID) (StepView, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.steps {
		if e.part.ID == id && !e.part.Ended {
			return StepView{h: h, first: e.number, after: h.next, Began: e.time}, true
		}
	}
	return StepView{h: h}, false
}

// Act is the last action of a kind in the step, with its end; false if there is none.
func (s StepView) Act(what Action, part string) (a Act, ended time.Time, there bool) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for _, e := range slices.Backward(s.h.acts) {
		if e.number >= s.first && e.number < s.after && e.part.What == what && e.part.Part == part {
			return e.part, e.time, true
		}
	}
	return Act{}, time.Time{}, false
}

// At is the history up to the last such moment in the step, with its mark; false if there is none.
func (s StepView) At(m Moment, part string) (View, Mark, bool) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for _, e := range slices.Backward(s.h.marks) {
		if e.number >= s.first && e.number < s.after && e.part.Moment == m && e.part.Part == part {
			return View{s.h, e.number, cmp.Or(e.part.Polls, e.number), e.time}, e.part, true
		}
	}
	return View{}, Mark{}, false
}

// Timelines are the probes' timelines as far as they were known at that moment.
func (v View) Timelines() []probe.Timeline {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	for _, e := range slices.Backward(v.h.packets) {
		if e.number < v.number {
			return each.Of(e.part, func(s probe.Stored) probe.Timeline { return s.At(e.time) })
		}
	}
	return nil
}

// since are the polls of the view that began at or after a moment, oldest first.
func (v View) since(moment time.Time) []at[Poll] {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	all := v.h.polls
	last := len(all)
	for last > 0 && all[last-1].number >= v.polls {
		last--
	}
	first := last
	for first > 0 && !all[first-1].part.Began.Before(moment) {
		first--
	}
	return all[first:last:last]
}

// Last is the newest poll; false if there is none.
func (v View) Last() (Poll, bool) {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	for _, e := range slices.Backward(v.h.polls) {
		if e.number < v.polls {
			return e.part, true
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
	whole := 0
	for _, p := range v.since(moment) {
		if len(p.part.Unavailable) == 0 {
			whole++
		}
	}
	return whole
}

// NotIsolated says since when packets of the lab could leave the machine; empty if they never
// could.
func (v View) NotIsolated() string {
	for _, p := range v.since(time.Time{}) {
		for _, source := range p.part.Unavailable {
			if source.Source == snapshot.Isolation {
				return fmt.Sprintf("from %s on: %s", p.part.Began.Format(time.TimeOnly), source)
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
	known := map[detect.ID]bool{}
	for _, p := range v.since(since) {
		for _, f := range p.part.Findings {
			if !known[f.ID()] {
				known[f.ID()] = true
				all = append(all, Sighting{f, p.part.Ended})
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
	var active []Finding
	for _, s := range v.Seen(since) {
		if s.State == detect.Active {
			active = append(active, s.Finding)
		}
	}
	return framework.Unexpected(active, expected...)
}

// UnavailableSince describes the sources that were unavailable in the newest such poll
// that began at or after a moment; empty if all were available in each poll.
func (v View) UnavailableSince(since time.Time) string {
	for _, p := range slices.Backward(v.since(since)) {
		if len(p.part.Unavailable) > 0 {
			return snapshot.Sentences(p.part.Unavailable)
		}
	}
	return ""
}

// Span is a time in which no poll has an unexpected active or pending finding, or an
// unavailable source.
type Span struct {
	// Since is the beginning of the first of these polls; zero if the newest poll is not
	// one. For is the time from it to the beginning of the newest.
	Since time.Time
	For   time.Duration
	// Reason is why the poll before the span is not in it; empty if there is none.
	// Unavailable is set if the reason is an unavailable source.
	Reason      string
	Unavailable bool
}

// WithoutFindings is the span that ends with the newest poll. It begins at or after a moment.
func (v View) WithoutFindings(after time.Time, expected ...framework.Finding) Span {
	polls := v.since(after)
	q := Span{Reason: "no poll yet"}
	for _, p := range slices.Backward(polls) {
		if why, unavailable := p.part.active(expected); why != "" {
			q.Reason, q.Unavailable = why, unavailable
			break
		}
		q = Span{Since: p.part.Began, For: polls[len(polls)-1].part.Began.Sub(p.part.Began)}
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
	return each.Of(v.since(time.Time{}), func(p at[Poll]) Poll { return p.part })
}
