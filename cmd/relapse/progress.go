package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/await"
)

// display shows what runs are doing. It is an engine.Progress: the one that Scenario
// returns tells of that run, the display itself of the run that was begun last.
type display struct {
	*shown
	run *board // nil: the last one
}

// look is how a display shows things.
type look struct {
	live  bool // a terminal: the steps of all runs stand below the lines, and are redrawn
	color bool
	quiet bool // nothing is shown
	// several runs are shown at once: lines say which one they are of.
	several bool
	// log is told when each step begins and ends; nil: nobody is.
	log *slog.Logger
	// forgets drops a run when the next one begins: they are many.
	forgets bool
	// earlier finds stored runs of a scenario that had the same steps, newest first;
	// nil where there can be none.
	earlier func(scenario string, steps []engine.Step) []timing
}

// shown is what displays of one output have in common.
type shown struct {
	out io.Writer
	look
	start    time.Time
	terminal *terminal // nil: plain lines

	mu     sync.Mutex
	runs   []*board
	above  []string // lines for a terminal that it has not got yet
	last   time.Time
	close  sync.Once
	closed chan struct{}
}

// What the log says of a step.
const (
	stepBegins = "step begins"
	stepEnds   = "step ends"
)

// stillEvery is how often somebody who reads lines is told that something lasts.
const stillEvery = 15 * time.Second

func newDisplay(out io.Writer, l look) *display {
	now := time.Now()
	s := &shown{out: out, look: l, start: now, last: now, closed: make(chan struct{})}
	switch {
	case l.quiet:
	case l.live:
		s.terminal = startTerminal(s)
	default:
		go s.tellStill()
	}
	return &display{shown: s}
}

func isTerminal(out *os.File) bool {
	return term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
}

// drawsOn tells whether a display on an output is drawn.
func (s *settings) drawsOn(out *os.File) bool { return isTerminal(out) && !s.quiet }

// progress makes the display of this process's output. Of it the log is a part, where
// both are on one terminal.
func (s *settings) progress(out *os.File, log *slog.Logger) *display {
	terminal := isTerminal(out)
	d := newDisplay(out, look{live: terminal, color: terminal && !s.noColor, quiet: s.quiet, several: s.several, log: log, earlier: s.earlier})
	s.onTerminal.Store(d.shown)
	return d
}

// Close ends the display. On a terminal the steps stay as lines. It can be called more
// than once.
func (s *shown) Close() {
	s.close.Do(func() {
		close(s.closed)
		if s.terminal == nil {
			return
		}
		s.terminal.end()
		s.mu.Lock()
		defer s.mu.Unlock()
		lines := s.above // that came too late
		for _, b := range s.runs {
			if s.several {
				lines = append(lines, s.paint(b.scenario, bold))
			}
			lines = append(lines, painter{look: s.look}.record(b)...)
		}
		for _, line := range lines {
			fmt.Fprintln(s.out, line)
		}
		s.above = nil
	})
}

func (d *display) Scenario(name string) engine.Progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &board{scenario: name, loses: map[string][]string{}}
	if d.forgets {
		d.runs = nil
	}
	d.runs = append(d.runs, b)
	return &display{d.shown, b}
}

// of is the run that is told of. The caller holds mu.
func (d *display) of() *board {
	switch {
	case d.run != nil:
		return d.run
	case len(d.runs) == 0:
		d.runs = append(d.runs, &board{loses: map[string][]string{}})
	}
	return d.runs[len(d.runs)-1]
}

func (d *display) Plan(steps []engine.Step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.of()
	b.plan(steps)
	if d.earlier != nil {
		b.earlier = d.earlier(b.scenario, steps)
	}
}

// logs says in the log what becomes of a step. The caller does not hold mu: the log may
// go through the display.
func (l look) logs(what, scope, name string) {
	if l.log != nil {
		l.log.Debug(what, "scope", scope, "step", name)
	}
}

func (d *display) Step(scope, name string) func(error) {
	d.logs(stepBegins, scope, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	ends, planned := d.of().begin(scope, name, time.Now())
	return func(err error) {
		d.logs(stepEnds, scope, name)
		d.mu.Lock()
		defer d.mu.Unlock()
		took := ends(err, time.Now())
		mark, detail := d.paint("ok  ", green), ""
		if err != nil {
			mark, detail = d.paint("FAIL", red), ": "+err.Error()
		}
		if d.live && err == nil { // it is seen below
			return
		}
		if d.live && !planned && strings.Contains(detail, "\n") { // the planned one says it again
			detail, _, _ = strings.Cut(detail, "\n")
		}
		d.line(fmt.Sprintf("%s %-22s %s (%s)%s", mark, d.about(scope), name, seconds(took), detail))
	}
}

func (d *display) Over(scope, name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of().over(scope, name, err, time.Now())
}

func (d *display) Waits(scope string, s await.Sight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of().wait(scope, s)
}

// Found tells of what is wrong. What is only given time to pass, and hints, are in the
// report.
func (d *display) Found(scope string, findings []detect.Finding) {
	type kind struct {
		detector, kind string
		state          detect.State
	}
	var order []kind
	of := map[kind][]detect.Finding{}
	for _, f := range findings {
		if f.State != detect.Active && f.State != detect.Latent {
			continue
		}
		k := kind{f.Detector, f.Kind, f.State}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], f)
	}
	for _, k := range order {
		says := of[k][0].Says
		if n := len(of[k]) - 1; n > 0 {
			says += fmt.Sprintf(" (and %d more)", n)
		}
		code := yellow
		if k.state == detect.Active {
			code = red
		}
		d.Note(scope, d.paint(fmt.Sprintf("finding: %s %s", k.state, k.kind), code)+": "+says)
	}
}

func (d *display) Loses(scope string, probes []string) {
	d.mu.Lock()
	d.of().loses[scope] = probes
	d.mu.Unlock()
	if len(probes) == 0 {
		d.Note(scope, "no probe loses packets any more")
		return
	}
	d.Note(scope, d.paint("losing packets", red)+": "+few(probes, 4))
}

// few names some, and says how many more there are.
func few(names []string, n int) string {
	if len(names) <= n+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

// Note prints a line of its own.
func (d *display) Note(scope, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.line(fmt.Sprintf("     %-22s %s", d.about(scope), text))
}

// about is a scope, behind its scenario where there are several. The caller holds mu.
func (d *display) about(scope string) string {
	if d.several && d.run != nil {
		return d.run.scenario + " " + scope
	}
	return scope
}

// Write prints lines as they are, such as a log's.
func (s *shown) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print(strings.TrimSuffix(string(text), "\n"))
	return len(text), nil
}

// line prints a line with the time. The caller holds mu, as it does of what follows.
func (s *shown) line(text string) {
	s.print(fmt.Sprintf("%7s  %s", seconds(time.Since(s.start)), text))
}

func (s *shown) print(text string) {
	s.last = time.Now()
	switch {
	case s.quiet:
	case s.terminal != nil && !s.terminal.ended():
		s.above = append(s.above, text)
	default:
		fmt.Fprintln(s.out, text)
	}
}

// tellStill tells what lasts, when no line has come for a while.
func (s *shown) tellStill() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.mu.Lock()
			if now := time.Now(); now.Sub(s.last) >= stillEvery {
				for _, b := range s.runs {
					for _, text := range b.still(now) {
						s.line(text)
					}
				}
			}
			s.mu.Unlock()
		case <-s.closed:
			return
		}
	}
}

// Colours, as terminals number them.
const (
	red, green, yellow, bold, faint = 31, 32, 33, 1, 2
)

func (l look) paint(text string, code int) string {
	if !l.color {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// lasting is a time of which somebody sees the end coming.
func lasting(d time.Duration) string {
	if d < time.Minute {
		return seconds(d)
	}
	return d.Round(time.Second).String()
}
