package display

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

type board struct {
	scenario string
	began    time.Time
	steps    []*plannedStep
	parts    []*part // running, oldest first
	waits    []scopedWait
	loses    map[string][]string // probes that currently lose packets, by scope
}

type state int

const (
	pending state = iota
	running
	done
	failed
	skipped
)

type stepKey struct{ scope, name string }

type plannedStep struct {
	stepKey
	state        state
	over         bool // its state is final
	began, ended time.Time
}

type part struct {
	scope, name string
	began       time.Time
	waits       bool
}

type scopedWait struct {
	scope string
	await.Sight
}

func (b *board) plan(steps []engine.Step) {
	for _, s := range steps {
		b.steps = append(b.steps, &plannedStep{stepKey: stepKey{s.Scope, s.Name}})
	}
}

func (b *board) find(key stepKey, is func(*plannedStep) bool) *plannedStep {
	i := slices.IndexFunc(b.steps, func(s *plannedStep) bool { return s.stepKey == key && is(s) })
	if i < 0 {
		return nil
	}
	return b.steps[i]
}

func (b *board) begin(scope, name string, now time.Time) (ends func(error, time.Time) time.Duration, planned bool) {
	if b.began.IsZero() {
		b.began = now
	}
	// A skipped step may still run: the lab goes down in any case.
	if s := b.find(stepKey{scope, name}, func(s *plannedStep) bool { return s.state == pending || s.state == skipped }); s != nil {
		s.state, s.began = running, now
		return func(err error, now time.Time) time.Duration {
			s.state, s.ended = done, now
			if err != nil {
				s.state = failed
			}
			return now.Sub(s.began)
		}, true
	}
	p := &part{scope: scope, name: name, began: now}
	b.parts = append(b.parts, p)
	return func(_ error, now time.Time) time.Duration {
		b.parts = slices.DeleteFunc(b.parts, func(other *part) bool { return other == p })
		return now.Sub(p.began)
	}, false
}

func (b *board) over(key stepKey, err error, now time.Time) {
	s := b.find(key, func(s *plannedStep) bool { return !s.over })
	if s == nil {
		return
	}
	s.over = true
	switch {
	case s.state != pending: // it began, and its end set the state
		return
	case errors.As(err, new(*engine.Skipped)):
		s.state = skipped
	case err != nil:
		s.state = failed
	default:
		s.state = done
	}
	s.began, s.ended = now, now
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

func (b *board) running() []*plannedStep {
	var all []*plannedStep
	for _, s := range b.steps {
		if s.state == running {
			all = append(all, s)
		}
	}
	return all
}

func (b *board) ended() bool {
	return len(b.steps) > 0 && len(b.parts) == 0 && !slices.ContainsFunc(b.steps, func(s *plannedStep) bool { return s.state < done })
}

// details are the waits and parts of a step's scope. The first running step also has those
// of scopes in which no step runs, such as images.
func (b *board) details(s *plannedStep) []part {
	all := b.running()
	return slices.DeleteFunc(b.unplanned(), func(p part) bool {
		return p.scope != s.scope && (s != all[0] || slices.ContainsFunc(all, func(u *plannedStep) bool { return u.scope == p.scope }))
	})
}

// unplanned are what lasts besides the planned steps. Waits come first: they are the most specific.
func (b *board) unplanned() (all []part) {
	for _, w := range b.waits {
		all = append(all, part{w.scope, w.text(), w.Began, true})
	}
	for _, p := range b.parts {
		all = append(all, *p)
	}
	return all
}

func (b *board) begun() bool { return !b.began.IsZero() || len(b.waits) > 0 }

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

// still are lines about what lasts, since when, and what it waits for.
func (b *board) still(now time.Time) []string {
	line := func(scope, name string, since time.Time, details []string) string {
		text := fmt.Sprintf("...  %-22s %s (%s so far)", scope, name, lasting(now.Sub(since)))
		if len(details) > 0 {
			text += ": " + strings.Join(details, " | ")
		}
		return text
	}
	var lines []string
	steps := b.running()
	for _, s := range steps {
		var details []string
		for _, d := range b.details(s) {
			if !d.waits {
				d.name += " (" + lasting(now.Sub(d.began)) + ")"
			}
			details = append(details, d.name)
		}
		lines = append(lines, line(s.scope, s.name, s.began, atMost(details, 4)))
	}
	if len(steps) > 0 {
		return lines
	}
	for _, p := range b.unplanned() {
		lines = append(lines, line(p.scope, p.name, p.began, nil))
	}
	return atMost(lines, 4)
}

func atMost(texts []string, n int) []string {
	if len(texts) <= n {
		return texts
	}
	return append(slices.Clone(texts[:n-1]), fmt.Sprintf("and %d more", len(texts)-n+1))
}

type painter struct {
	Look
	width int
	frame int // counts the drawings, for the spinner
}

var spinner = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// draw draws the runs in at most height lines: one line for a run that has ended or not
// begun; for others all steps, or as many as fit around the running steps.
func (p painter) draw(runs []*board, now time.Time, height int) []string {
	var heads [][]string
	var bodies []body
	// Until a run has begun, the steps of the first one are shown.
	next := slices.IndexFunc(runs, func(b *board) bool { return b.begun() && !b.ended() })
	if next < 0 {
		next = slices.IndexFunc(runs, func(b *board) bool { return !b.ended() })
	}
	for i, b := range runs {
		heads = append(heads, p.head(b, now))
		if !b.ended() && (i == next || b.begun()) {
			bodies = append(bodies, p.body(b, now))
		} else {
			bodies = append(bodies, body{})
		}
	}
	room := height
	for _, h := range heads {
		room -= len(h)
	}
	var lines []string
	for i := range runs {
		lines = append(lines, heads[i]...)
		shown := bodies[i].window(max(1, room))
		room -= len(shown)
		lines = append(lines, shown...)
	}
	if len(lines) > height { // more runs than lines
		lines = lines[len(lines)-height:]
	}
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, p.width, "…")
	}
	return lines
}

// head is a run's own line, and one for each scope that loses packets.
func (p painter) head(b *board, now time.Time) []string {
	if b.scenario == "" && len(b.steps) == 0 {
		return nil
	}
	count := map[state]int{}
	for _, s := range b.steps {
		count[s.state]++
	}
	text := p.paint(b.scenario, bold)
	switch {
	case b.ended():
		text += fmt.Sprintf("  %d steps", count[done])
	case b.began.IsZero():
		text += fmt.Sprintf("  %d steps to come", len(b.steps))
	default:
		text += "  " + lasting(now.Sub(b.began))
	}
	if count[failed] > 0 {
		text += ", " + p.paint(fmt.Sprintf("%d failed", count[failed]), red)
	}
	lines := []string{text}
	for _, s := range b.running() {
		if lost := b.loses[s.scope]; len(lost) > 0 {
			lines = append(lines, "  "+p.paint("losing packets", red)+" with "+s.scope+": "+few(lost, 3))
		}
	}
	return lines
}

type body struct {
	lines []string
	steps []bool // whether the line is a step's
	// first and last are the lines of the running steps, or of the next step if none runs.
	first, last int
}

func (p painter) body(b *board, now time.Time) body {
	var y body
	y.first = -1
	add := func(line string, step bool) { y.lines, y.steps = append(y.lines, line), append(y.steps, step) }
	scope := ""
	for _, s := range b.steps {
		if s.scope != scope {
			scope = s.scope
			add(p.paint(scope, faint), false)
		}
		at := len(y.lines)
		add(p.step(s, now), true)
		if s.state == running {
			details := each.Of(b.details(s), func(d part) string { return "    " + p.timed(d.name, now.Sub(d.began), 4) })
			if len(details) > 6 {
				details = append(details[:5], fmt.Sprintf("    and %d more", len(details)-5))
			}
			for _, line := range details {
				add(line, false)
			}
		}
		if s.state == running || s.state == pending && y.first < 0 {
			if y.first < 0 {
				y.first = at
			}
			y.last = len(y.lines) - 1
		}
	}
	if len(b.running()) == 0 { // a step that is not in the plan
		details := each.Of(b.unplanned(), func(d part) string { return p.mark(running) + " " + p.timed(d.name, now.Sub(d.began), 2) })
		for _, line := range atMost(details, 6) {
			add(line, false)
		}
	}
	y.first = max(0, y.first)
	return y
}

func (p painter) step(s *plannedStep, now time.Time) string {
	switch mark := p.mark(s.state); s.state {
	case running:
		return mark + " " + p.timed(s.name, now.Sub(s.began), 2)
	case done, failed:
		return mark + " " + p.timed(s.name, s.ended.Sub(s.began), 2)
	default:
		return mark + " " + p.paint(s.name, faint)
	}
}

func (p painter) mark(s state) string {
	switch s {
	case running:
		return string(spinner[p.frame%len(spinner)])
	case done:
		return p.paint("✔", green)
	case failed:
		return p.paint("✘", red)
	case skipped:
		return p.paint("-", faint)
	}
	return p.paint("·", faint)
}

// timed is a text from a column on, with a time at the right. A long text is cut.
func (p painter) timed(text string, d time.Duration, column int) string {
	took := lasting(d)
	room := min(p.width, 100) - column - len(took) - 2
	if room < 10 {
		return text
	}
	text = ansi.Truncate(text, room, "…")
	return text + strings.Repeat(" ", max(1, room-ansi.StringWidth(text)+1)) + took
}

// window are the lines around the running steps that fit, with the number of steps left out.
func (y body) window(room int) []string {
	if len(y.lines) <= room {
		return y.lines
	}
	if room < 3 {
		return y.lines[y.first:min(y.first+room, len(y.lines))]
	}
	above := 2
	if room < 5 {
		above = 1
	}
	start := max(0, min(y.first-above, len(y.lines)-room))
	if start > 0 && y.last > start+room-2 { // running steps matter more than those before
		start = min(y.first-1, y.last-room+2)
	}
	start = max(0, start)
	end := min(len(y.lines), start+room)
	lines := slices.Clone(y.lines[start:end])
	hidden := func(from, to int) int {
		n := 0
		for _, step := range y.steps[from:to] {
			if step {
				n++
			}
		}
		return n
	}
	if start > 0 {
		lines[0] = fmt.Sprintf("  … %d steps before", hidden(0, start+1))
	}
	if end < len(y.lines) {
		lines[len(lines)-1] = fmt.Sprintf("  … %d steps to come", hidden(end-1, len(y.lines)))
	}
	return lines
}

// manySteps is the largest number of steps that are listed at the end of a run. Of more
// steps only the failed ones are listed; the report has all.
const manySteps = 60

// record are the steps of a run at its end, as lines that remain.
func (p painter) record(b *board) []string {
	var lines []string
	for _, s := range b.steps {
		if s.state == pending || len(b.steps) > manySteps && s.state != failed {
			continue
		}
		took := ""
		if s.state != skipped && s.state != running {
			took = " (" + lasting(s.ended.Sub(s.began)) + ")"
		}
		mark := p.mark(s.state)
		if s.state == running {
			mark = p.paint("…", faint)
		}
		lines = append(lines, fmt.Sprintf("%s %-22s %s%s", mark, s.scope, s.name, took))
	}
	return lines
}
