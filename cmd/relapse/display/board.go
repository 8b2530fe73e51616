package display

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

type board struct {
	scenario string
	began    time.Time
	steps    []*step // planned steps, and running parts of them
	waits    []scopedWait
}

type state int

const (
	pending state = iota
	running
	done
	failed
	skipped
)

// step is a planned step, or a part of one.
type step struct {
	scope, name   string
	planned, over bool
	state         state
	began         time.Time
	took          time.Duration
}

type scopedWait struct {
	scope string
	await.Sight
}

func (b *board) find(scope, name string, matches func(*step) bool) *step {
	i := slices.IndexFunc(b.steps, func(s *step) bool { return s.planned && s.scope == scope && s.name == name && matches(s) })
	if i < 0 {
		return nil
	}
	return b.steps[i]
}

func (b *board) begin(scope, name string, now time.Time) (ends func(error, time.Time) time.Duration) {
	if b.began.IsZero() {
		b.began = now
	}
	// A skipped step may still run: the lab is taken down in any case.
	s := b.find(scope, name, func(s *step) bool { return s.state == pending || s.state == skipped })
	if s == nil {
		s = &step{scope: scope, name: name}
		b.steps = append(b.steps, s)
	}
	s.state, s.began = running, now
	return func(err error, now time.Time) time.Duration {
		if s.state, s.took = done, now.Sub(s.began); err != nil {
			s.state = failed
		}
		b.steps = slices.DeleteFunc(b.steps, func(other *step) bool { return other == s && !s.planned })
		return s.took
	}
}

// end ends a planned step, whether it has begun or not.
func (b *board) end(scope, name string, err error) {
	s := b.find(scope, name, func(s *step) bool { return !s.over })
	if s == nil {
		return
	}
	s.over = true
	switch {
	case s.state != pending: // its end has set the state
	case errors.As(err, new(*engine.Skipped)):
		s.state = skipped
	case err != nil:
		s.state = failed
	default:
		s.state = done
	}
}

func (b *board) wait(scope string, s await.Sight) {
	i := slices.IndexFunc(b.waits, func(w scopedWait) bool {
		return w.scope == scope && w.What == s.What && w.Began.Equal(s.Began)
	})
	switch {
	case i < 0 && !s.Over:
		b.waits = append(b.waits, scopedWait{scope, s})
	case i >= 0 && s.Over:
		b.waits = slices.Delete(b.waits, i, i+1)
	case i >= 0:
		b.waits[i].Sight = s
	}
}

// lasting returns the planned steps that are running, and other running activities: waits first, as the most specific.
func (b *board) lasting() (steps, besides []*step) {
	for _, w := range b.waits {
		besides = append(besides, &step{scope: w.scope, name: w.text(), began: w.Began})
	}
	for _, s := range b.steps {
		switch {
		case s.state == running && s.planned:
			steps = append(steps, s)
		case s.state == running:
			besides = append(besides, s)
		}
	}
	return steps, besides
}

// parts returns the activities in the scope of a running step. The first running step also has the activities in
// scopes in which no step runs, such as images.
func (s *step) parts(steps, besides []*step) []*step {
	return slices.DeleteFunc(slices.Clone(besides), func(p *step) bool {
		return p.scope != s.scope && (s != steps[0] || slices.ContainsFunc(steps, func(u *step) bool { return u.scope == p.scope }))
	})
}

func (w scopedWait) text() string {
	saw := strings.Join(strings.Fields(w.Saw), " ")
	switch {
	case w.scope == suite.ImagesScope:
		return w.What + ": " + saw
	case saw == "":
		return "waits for " + w.What
	}
	return "waits for " + w.What + "; last seen: " + saw
}

func (b *board) still(now time.Time) []string {
	line := func(s *step) string {
		return fmt.Sprintf("...  %-22s %s (%s so far)", s.scope, s.name, lasting(now.Sub(s.began)))
	}
	steps, besides := b.lasting()
	if len(steps) == 0 {
		return atMost(each.Of(besides, line), 4)
	}
	return each.Of(steps, func(s *step) string {
		details := each.Of(s.parts(steps, besides), func(p *step) string { return p.name })
		if len(details) == 0 {
			return line(s)
		}
		return line(s) + ": " + strings.Join(atMost(details, 4), " | ")
	})
}

func atMost(texts []string, n int) []string {
	if len(texts) <= n {
		return texts
	}
	return append(slices.Clone(texts[:n-1]), fmt.Sprintf("and %d more", len(texts)-n+1))
}

// marks of steps, by state. The mark of a running step changes.
var (
	marks   = map[state]string{pending: "·", done: "✔", failed: "✘", skipped: "-"}
	spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
)

// drawn returns the lines of a run: its steps, and what each running step waits for. Of more than room lines, it
// returns the lines around the first step that is not over. A run that has ended has no line, a run to come has one.
func (b *board) drawn(now time.Time, room int) []string {
	steps, besides := b.lasting()
	planned := len(b.steps) > 0 && b.steps[0].planned
	over := planned && !slices.ContainsFunc(b.steps, func(s *step) bool { return s.state < done })
	switch {
	case over:
		return nil
	case !planned:
		return b.still(now)
	case b.began.IsZero():
		return []string{fmt.Sprintf("%s  %d steps to come", b.scenario, len(b.steps))}
	}
	lines := []string{b.scenario + "  " + lasting(now.Sub(b.began))}
	scope, first := "", -1
	for _, s := range b.steps {
		if !s.planned {
			continue
		}
		if s.scope != scope {
			scope = s.scope
			lines = append(lines, scope)
		}
		if s.state < done && first < 0 {
			first = len(lines)
		}
		text := marks[s.state] + " " + s.name
		switch s.state {
		case running:
			text = fmt.Sprintf("%c %s (%s)", spinner[now.UnixMilli()/200%int64(len(spinner))], s.name, lasting(now.Sub(s.began)))
		case done, failed:
			text += fmt.Sprintf(" (%s)", lasting(s.took))
		}
		lines = append(lines, text)
		if s.state == running {
			lines = append(lines, atMost(each.Of(s.parts(steps, besides), func(p *step) string {
				return fmt.Sprintf("    %s (%s)", p.name, lasting(now.Sub(p.began)))
			}), 6)...)
		}
	}
	if len(lines) <= room {
		return lines
	}
	from := max(0, min(first-1, len(lines)-room))
	some := slices.Clone(lines[from : from+room])
	if from > 0 {
		some[0] = lines[0]
	}
	if left := len(lines) - from - room; left > 0 && room > 2 {
		some[room-1] = fmt.Sprintf("  … and %d more lines", left+1)
	}
	return some
}
