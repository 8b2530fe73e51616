package history

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
)

// Finding is a detector's.
type Finding = detect.Finding

// View is a history up to a moment. What is asked of it does not change when the
// history goes on.
type View struct {
	h *History
	// number is that of the first entry that is not in it, and polls that of the first
	// poll that is not.
	number, polls int
	// Time is the moment.
	Time time.Time
}

// View is all that there is so far.
func (h *History) View() View {
	h.mu.Lock()
	defer h.mu.Unlock()
	return View{h, h.next, h.next, h.Now()}
}

// StepView is what a history holds of one step.
type StepView struct {
	h            *History
	first, after int // numbers of its first entry, and of the first that is none of it
	// Began is when it began, and Ended when it ended.
	Began, Ended time.Time
	// Error, Interrupted and Panicked are as in Step.
	Error                 string
	Interrupted, Panicked bool
}

// Step is the part of a step; false where the step has not come to its end.
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

// UnderWay is the part of a step that goes on, as far as it has come.
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

// Act is the last action of a kind in the step, with its end; false where there is none.
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

// At is the history up to the last moment of that name in the step, with its mark;
// false where there is none.
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

// Timelines are the probes' timelines, as they were known then.
func (v View) Timelines() []probe.Timeline {
	v.h.mu.Lock()
	defer v.h.mu.Unlock()
	for _, e := range slices.Backward(v.h.packets) {
		if e.number < v.number {
			var all []probe.Timeline
			for _, s := range e.part {
				all = append(all, s.At(e.time))
			}
			return all
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

// Last is the newest poll; false where there is none.
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

// Findings are those of the newest poll.
func (v View) Findings() []Finding {
	last, _ := v.Last()
	return slices.Clone(last.Findings)
}

// PollsSince counts the polls that began at or after a moment.
func (v View) PollsSince(moment time.Time) int { return len(v.since(moment)) }

// Sighting is a finding, and when the poll was over that showed it first.
type Sighting struct {
	Finding
	At time.Time
}

// Seen returns every finding of the polls that began at or after a moment, each with
// the first of these polls that showed it, oldest first.
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

// Alarms are the active findings of the polls that began at or after a moment, but for
// the named ones.
func (v View) Active(since time.Time, named ...framework.Finding) []Finding {
	var active []Finding
	for _, s := range v.Seen(since) {
		if s.State == detect.Active {
			active = append(active, s.Finding)
		}
	}
	return framework.Unexpected(active, named...)
}

// BlindSince says which sources were not read in the newest poll that began at or
// after a moment and did not read all; empty if each read all.
func (v View) UnavailableSince(since time.Time) string {
	for _, p := range slices.Backward(v.since(since)) {
		if len(p.part.Unavailable) > 0 {
			return strings.Join(p.part.Unavailable, "; ")
		}
	}
	return ""
}

// Quiet is a time in which each poll read all that it was to read, and found nothing
// but what is latent, a hint or named.
type Span struct {
	// Since is when the first of these polls began, zero where the newest is none of them,
	// and For how long they reach, up to the beginning of the newest.
	Since time.Time
	For   time.Duration
	// Noise says why the poll before them was no quiet one; empty where there is none.
	// Blind is set where a source was not read.
	Reason      string
	Unavailable bool
}

// Quiet is the time up to the newest poll, and back to a moment at most, that was quiet.
func (v View) WithoutFindings(after time.Time, named ...framework.Finding) Span {
	polls := v.since(after)
	q := Span{Reason: "no poll yet"}
	for _, p := range slices.Backward(polls) {
		if why, blind := p.part.active(named); why != "" {
			q.Reason, q.Unavailable = why, blind
			break
		}
		q = Span{Since: p.part.Began, For: polls[len(polls)-1].part.Began.Sub(p.part.Began)}
	}
	return q
}

// noise says why a poll was no quiet one; it is empty where it was.
func (p Poll) active(named []framework.Finding) (noise string, blind bool) {
	loud := slices.DeleteFunc(framework.Unexpected(p.Findings, named...), func(f Finding) bool {
		return f.State == detect.Latent || f.State == detect.Hint
	})
	switch {
	case len(loud) > 0:
		return framework.DescribeFindings(loud), false
	case len(p.Unavailable) > 0:
		return "a source is unavailable: " + strings.Join(p.Unavailable, "; "), true
	}
	return "", false
}

// Polls are all polls of the view, oldest first.
func (v View) Polls() []Poll {
	var all []Poll
	for _, p := range v.since(time.Time{}) {
		all = append(all, p.part)
	}
	return all
}
