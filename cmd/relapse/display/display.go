// Package display shows what runs are doing, on a terminal or as lines.
package display

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/await"
)

// Display shows what runs are doing. It is an engine.Progress of the run that began last. Scenario returns the
// engine.Progress of one run.
type Display struct {
	*shown
	run *board // nil: the run that began last
}

// Look is how a display shows things.
type Look struct {
	Live    bool // a terminal: the steps of all runs are drawn below the lines
	Color   bool
	Several bool // there are several runs: each line names its run
	Planned bool // nothing runs: lines have no times
	// Log gets a line when a step begins and when it ends. It may be nil.
	Log *slog.Logger
}

type shown struct {
	out io.Writer
	Look
	start time.Time
	size  func() (width, height int) // of the terminal

	mu     sync.Mutex
	runs   []*board
	last   time.Time
	drawn  int // lines of steps that the terminal shows
	ended  bool
	closed chan struct{}
}

// Messages of the log about a step.
const (
	StepBegins = "step begins"
	StepEnds   = "step ends"
)

// On a terminal, running steps are drawn again and again. Elsewhere they get a line after some time without a line.
const (
	drawnEvery = 200 * time.Millisecond
	stillEvery = 15 * time.Second
)

// New makes a display on an output.
func New(out io.Writer, l Look) *Display {
	return start(out, l, func() (width, height int) {
		if file, ok := out.(*os.File); ok {
			width, height, _ = term.GetSize(int(file.Fd()))
		}
		return cmp.Or(width, 80), cmp.Or(height, 24)
	})
}

func start(out io.Writer, l Look, size func() (width, height int)) *Display {
	now := time.Now()
	s := &shown{out: out, Look: l, start: now, size: size, last: now, closed: make(chan struct{})}
	go s.repeat()
	return &Display{shown: s}
}

// IsTerminal reports whether a display can be drawn on an output.
func IsTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
}

// Close ends the display. It can be called more than once.
func (s *shown) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	close(s.closed)
	if s.ended = true; s.Live {
		s.write("")
	}
}

// Scenario begins a run.
func (d *Display) Scenario(name string) engine.Progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &board{scenario: name}
	d.runs = append(d.runs, b)
	return &Display{d.shown, b}
}

// current returns the run that is shown. The caller holds mu.
func (d *Display) current() *board {
	switch {
	case d.run != nil:
		return d.run
	case len(d.runs) == 0:
		d.runs = append(d.runs, &board{})
	}
	return d.runs[len(d.runs)-1]
}

func (d *Display) Plan(steps []engine.Step) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.current()
	for _, s := range steps {
		b.steps = append(b.steps, &step{scope: s.Scope, name: s.Name, planned: true})
	}
}

// logs is called without mu, because the log may write to the display.
func (l Look) logs(what, scope, name string) {
	if l.Log != nil {
		l.Log.Debug(what, "scope", scope, "step", name)
	}
}

func (d *Display) Step(scope, name string) func(error) {
	d.logs(StepBegins, scope, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	ends := d.current().begin(scope, name, time.Now())
	return func(err error) {
		d.logs(StepEnds, scope, name)
		d.mu.Lock()
		defer d.mu.Unlock()
		took := ends(err, time.Now())
		mark, detail := d.paint("ok  ", green), ""
		if err != nil {
			mark, detail = d.paint("FAIL", red), ": "+err.Error()
		}
		d.line(fmt.Sprintf("%s %-22s %s (%s)%s", mark, d.about(scope), name, seconds(took), detail))
	}
}

func (d *Display) Over(scope, name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current().end(scope, name, err)
}

func (d *Display) Waits(scope string, s await.Sight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current().wait(scope, s)
}

// Found shows active and latent findings. Pending ones and hints are in the report.
func (d *Display) Found(scope string, findings []detect.Finding) {
	type kind struct {
		detector, kind string
		state          detect.State
	}
	var order []kind
	byKind := map[kind][]detect.Finding{}
	for _, f := range findings {
		if f.State != detect.Active && f.State != detect.Latent {
			continue
		}
		k := kind{f.Detector, f.Kind, f.State}
		if byKind[k] == nil {
			order = append(order, k)
		}
		byKind[k] = append(byKind[k], f)
	}
	for _, k := range order {
		says := byKind[k][0].Says
		if n := len(byKind[k]) - 1; n > 0 {
			says += fmt.Sprintf(" (and %d more)", n)
		}
		code := yellow
		if k.state == detect.Active {
			code = red
		}
		d.Note(scope, d.paint(fmt.Sprintf("finding: %s %s", k.state, k.kind), code)+": "+says)
	}
}

func (d *Display) Loses(scope string, probes []string) {
	if len(probes) == 0 {
		d.Note(scope, "no running probe loses packets any longer")
		return
	}
	d.Note(scope, d.paint("losing packets", red)+": "+few(probes, 4))
}

func few(names []string, n int) string {
	if len(names) <= n+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

// Note writes a line.
func (d *Display) Note(scope, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.line(fmt.Sprintf("     %-22s %s", d.about(scope), text))
}

// about returns a scope, with its scenario if there are several runs. The caller holds mu.
func (d *Display) about(scope string) string {
	if d.Several && d.run != nil {
		return d.run.scenario + " " + scope
	}
	return scope
}

// Write writes the lines of a log as they are.
func (s *shown) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print(strings.TrimSuffix(string(text), "\n"))
	return len(text), nil
}

func (s *shown) line(text string) {
	if s.Planned {
		s.print(text)
		return
	}
	s.print(fmt.Sprintf("%7s  %s", seconds(time.Since(s.start)), text))
}

func (s *shown) print(text string) {
	s.last = time.Now()
	s.write(plain.Coloured(text) + "\n")
}

// above is the number of a terminal's rows that steps leave to other lines.
const above = 4

// write writes lines; on a terminal, above the steps. Each step has one row, and the steps do not fill the screen: a
// row that has scrolled away cannot be erased.
func (s *shown) write(lines string) {
	if s.drawn > 0 { // from the first column: the terminal shows a typed Ctrl-C as ^C
		lines = fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn) + lines
	}
	var status []string
	if s.Live && !s.ended {
		width, height := s.size()
		room := max(1, height-above)
		now := time.Now()
		for _, b := range s.runs {
			status = append(status, b.drawn(now, max(1, room-len(s.runs)+1))...)
		}
		status = status[:min(len(status), room)]
		for _, line := range status {
			lines += ansi.Truncate(plain.Line(line), width-1, "…") + "\n"
		}
	}
	s.drawn = len(status)
	_, _ = io.WriteString(s.out, lines) // an error does not end the run
}

func (s *shown) repeat() {
	every := time.Second
	if s.Live {
		every = drawnEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.mu.Lock()
			s.showStill(time.Now())
			s.mu.Unlock()
		case <-s.closed:
			return
		}
	}
}

func (s *shown) showStill(now time.Time) {
	switch {
	case s.ended:
	case s.Live:
		s.write("")
	case now.Sub(s.last) >= stillEvery:
		for _, b := range s.runs {
			for _, text := range b.still(now) {
				s.line(text)
			}
		}
	}
}

// Colours, as terminals number them.
const (
	red, green, yellow = 31, 32, 33
)

func (l Look) paint(text string, code int) string {
	if !l.Color {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// lasting formats the duration of a running step: without fractions of a second after a minute.
func lasting(d time.Duration) string {
	if d < time.Minute {
		return seconds(d)
	}
	return d.Round(time.Second).String()
}
