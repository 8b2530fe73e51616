package display

import (
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/report/plain"
)

const redrawEvery = 200 * time.Millisecond

// terminal draws runs below the lines that are printed. It reads no input, does not
// change the cursor, and handles no signal except the one for another size. So when this
// process ends, only hideControls is to be undone.
type terminal struct {
	program *tea.Program
	over    chan struct{} // closed when drawing has ended
	restore func()        // the terminal's modes; nil if they were not changed
}

func startTerminal(s *shown) *terminal {
	t := &terminal{program: newProgram(s, s.out), over: make(chan struct{})}
	if file, is := s.out.(*os.File); is {
		t.restore = hideControls(int(file.Fd()))
	}
	go func() {
		defer close(t.over)
		_, _ = t.program.Run() // an error does not end the run
	}()
	return t
}

func newProgram(s *shown, out io.Writer, more ...tea.ProgramOption) *tea.Program {
	profile := colorprofile.Ascii
	if s.Color {
		profile = colorprofile.ANSI
	}
	return tea.NewProgram(&drawing{shown: s}, append([]tea.ProgramOption{
		tea.WithOutput(out), tea.WithInput(nil), tea.WithoutSignalHandler(), tea.WithFPS(10), tea.WithColorProfile(profile),
	}, more...)...)
}

func (t *terminal) ended() bool {
	select {
	case <-t.over:
		return true
	default:
		return false
	}
}

func (t *terminal) end() {
	t.program.Send(endMsg{})
	<-t.over
	if t.restore != nil {
		t.restore()
	}
}

// hideControls makes a terminal not print a typed Ctrl-C as "^C", which would shift the drawing,
// and returns what undoes that. A killed process does not undo it; shells and editors set the mode
// that they need. A process in the background changes nothing: the kernel would stop it.
func hideControls(fd int) (restore func()) {
	set := func(echo uint32) (before uint32, done bool) {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err != nil || group != unix.Getpgrp() {
			return 0, false
		}
		modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return 0, false
		}
		before = modes.Lflag & unix.ECHOCTL
		modes.Lflag = modes.Lflag&^unix.ECHOCTL | echo
		return before, unix.IoctlSetTermios(fd, unix.TCSETS, modes) == nil
	}
	before, done := set(0)
	if !done {
		return func() {}
	}
	return func() { set(before) }
}

type (
	tickMsg struct{}
	endMsg  struct{}
)

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
		return d, d.printed(tick())
	case endMsg:
		d.ending = true
		return d, tea.Quit
	}
	return d, nil
}

// room is how many lines of a terminal are not drawn on. At most this many lines are printed above
// the drawing at a time: with more, a terminal would keep parts of the drawing in its scroll-back.
func (d *drawing) room() int { return max(1, min(6, d.height/3)) }

// printed prints the new lines, and then does what is next. In parallel, lines might change places.
func (d *drawing) printed(next tea.Cmd) tea.Cmd {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.above) == 0 || d.width == 0 {
		return next
	}
	lines := strings.Split(ansi.Hardwrap(strings.Join(d.above, "\n"), d.width, true), "\n")
	d.above = nil
	var all []tea.Cmd
	for some := range slices.Chunk(lines, d.room()) {
		all = append(all, tea.Println(strings.Join(some, "\n")))
	}
	return tea.Sequence(append(all, next)...)
}

func (d *drawing) View() tea.View {
	v := tea.NewView("")
	v.DisableBracketedPasteMode = true
	// A cursor that is not set is hidden, which a killed process could not undo. This
	// invalid shape leaves it as it is.
	v.Cursor = &tea.Cursor{Shape: -1}
	if d.ending || d.width == 0 {
		return v
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The cursor has one more line.
	lines := painter{d.Look, d.width, d.frame}.draw(d.runs, time.Now(), max(1, d.height-d.room()-1))
	v.Cursor.Y = len(lines)
	v.SetContent(plain.Coloured(strings.Join(append(lines, ""), "\n")))
	return v
}
