package main

import (
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
)

// redrawEvery is how often a terminal is drawn anew.
const redrawEvery = 200 * time.Millisecond

// terminal draws what is shown below the lines that are printed. It reads no input,
// leaves the terminal's modes and the cursor as they are, and handles no signal but the
// one for another size: whatever ends this process, nothing is to be put back.
type terminal struct {
	program *tea.Program
	over    chan struct{} // closed when nothing is drawn any more
}

func startTerminal(s *shown) *terminal {
	t := &terminal{program: newProgram(s, s.out), over: make(chan struct{})}
	go func() {
		defer close(t.over)
		_, _ = t.program.Run() // a terminal that cannot be drawn on ends no run
	}()
	return t
}

func newProgram(s *shown, out io.Writer, more ...tea.ProgramOption) *tea.Program {
	profile := colorprofile.Ascii
	if s.color {
		profile = colorprofile.ANSI
	}
	return tea.NewProgram(&drawing{shown: s}, append([]tea.ProgramOption{
		tea.WithOutput(out), tea.WithInput(nil), tea.WithoutSignalHandler(), tea.WithFPS(10), tea.WithColorProfile(profile),
	}, more...)...)
}

// ended tells whether nothing is drawn any more.
func (t *terminal) ended() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}

// end ends the drawing: what was drawn goes, and what is to stay is printed.
func (t *terminal) end() {
	t.program.Send(endMsg{})
	<-t.over
}

type (
	tickMsg struct{}
	endMsg  struct{}
)

// drawing is what is shown, as a program of bubbletea.
type drawing struct {
	*shown
	width, height int
	frame         int
	ending        bool
}

func (d *drawing) Init() tea.Cmd { return tick() }

func tick() tea.Cmd { return tea.Tick(redrawEvery, func(time.Time) tea.Msg { return tickMsg{} }) }

func (d *drawing) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		d.width, d.height = msg.Width, msg.Height
	case tickMsg:
		d.frame++
		return d, d.printed(tick(), false)
	case endMsg:
		d.ending = true
		return d, d.printed(tea.Quit, true)
	}
	return d, nil
}

// printed prints the lines that came in the meantime, and then does what is next: two
// that are printed side by side might change places. The last ones are the steps.
func (d *drawing) printed(next tea.Cmd, last bool) tea.Cmd {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.above
	d.above = nil
	if last {
		for _, b := range d.runs {
			lines = append(lines, painter{look: d.look}.record(b)...)
		}
	}
	if len(lines) == 0 {
		return next
	}
	return tea.Sequence(tea.Println(strings.Join(lines, "\n")), next)
}

func (d *drawing) View() tea.View {
	v := tea.NewView("")
	v.DisableBracketedPasteMode = true
	// One that is not set is hidden, which a killed process could not take back. With
	// this shape, which there is not, it looks as before.
	v.Cursor = &tea.Cursor{Shape: -1}
	if d.ending || d.width == 0 {
		return v
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A line is left for the cursor.
	lines := painter{d.look, d.width, d.frame}.draw(d.runs, time.Now(), d.height-1)
	v.Cursor.Y = len(lines)
	v.SetContent(strings.Join(append(lines, ""), "\n"))
	return v
}
