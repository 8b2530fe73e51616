package display

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hinshun/vt10x"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

func shortRun() []engine.Step {
	return []engine.Step{
		{Scope: "lab", Name: "images are there"},
		{Scope: "lab", Name: "lab is up"},
		{Scope: "old", Name: "components are installed"},
		{Scope: "old", ID: framework.StepFault, Name: "fault"},
		{Scope: "old", Name: "verdict is reproduced"},
		{Scope: "lab", Name: "lab is down"},
	}
}

// play plays the beginning of a run: its images are built, and its lab fails after two
// parts of it. One part has waited.
func play(p engine.Progress) {
	p.Plan(shortRun())
	images := p.Step("lab", "images are there")
	build := await.Sight{What: "relapse.dev/tor:dev", Saw: "compiling 12 of 40 packages: net", Began: time.Now()}
	p.Waits("images", build)
	time.Sleep(20 * time.Second) // of the bubble
	build.Over = true
	p.Waits("images", build)
	p.Note("images", "relapse.dev/tor:dev built in 20.0 s (40 packages)")
	images(nil)
	p.Over("lab", "images are there", nil)
	up := p.Step("lab", "lab is up")
	first := p.Step("lab", "cluster k8s")
	api := await.Sight{What: "the API server", Saw: "connection\n refused", Began: time.Now()}
	p.Waits("lab", api)
	time.Sleep(time.Second)
	second := p.Step("lab", "registry")
	time.Sleep(500 * time.Millisecond)
	second(nil)
	time.Sleep(15 * time.Second)
	api.Over = true
	p.Waits("lab", api)
	err := errors.New("no node")
	first(err)
	up(err)
	p.Over("lab", "lab is up", err)
	for _, s := range shortRun()[2:] {
		p.Over(s.Scope, s.Name, &engine.Skipped{Why: "there is no lab"})
	}
}

// A pipe gets plain lines: one for each step, when it ends, and one at least every 15 s
// for what lasts.
func TestProgressInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, Look{})
		play(p.Scenario("drain"))
		p.Close()
		p.Close() // as a deferred one does after the run's own
		want := `  15.0s  ...  lab                    images are there (15.0s so far): relapse.dev/tor:dev: compiling 12 of 40 packages: net
  20.0s       images                 relapse.dev/tor:dev built in 20.0 s (40 packages)
  20.0s  ok   lab                    images are there (20.0s)
  21.5s  ok   lab                    registry (0.5s)
  36.5s  FAIL lab                    cluster k8s (16.5s): no node
  36.5s  FAIL lab                    lab is up (16.5s): no node
`
		got := out.String()
		// At 36.5 s two things come at the same moment.
		got = regexp.MustCompile(`(?m)^  3[56]\.[05]s  \.\.\. .*\n`).ReplaceAllString(got, "")
		must.Equal(t, "", want, got)
	})
}

// The log says of each step when it begins as well, in the order in which that happens.
func TestStepsAreInTheLog(t *testing.T) {
	var out, log bytes.Buffer
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	p := New(&out, Look{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))})
	defer p.Close()
	run := p.Scenario("drain")
	up := run.Step("lab", "lab is up")
	registry := run.Step("lab", "registry")
	registry(nil)
	up(errors.New("no node"))
	want := `level=DEBUG msg="step begins" scope=lab step="lab is up"
level=DEBUG msg="step begins" scope=lab step=registry
level=DEBUG msg="step ends" scope=lab step=registry
level=DEBUG msg="step ends" scope=lab step="lab is up"
`
	must.Equal(t, "", want, log.String())
}

// While something lasts no more than 15 s pass without a line, also in a run in which
// nothing was planned.
func TestProgressIsNeverSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, Look{})
		done := p.Step("lab", "control plane boots")
		time.Sleep(50 * time.Second)
		done(nil)
		time.Sleep(time.Minute) // nothing lasts
		p.Close()
		want := `  15.0s  ...  lab                    control plane boots (15.0s so far)
  30.0s  ...  lab                    control plane boots (30.0s so far)
  45.0s  ...  lab                    control plane boots (45.0s so far)
  50.0s  ok   lab                    control plane boots (50.0s)
`
		must.Equal(t, "", want, out.String())
	})
}

func TestProgressShowsFindingsAndLosses(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, Look{})
	defer p.Close()
	of := func(kind, object string, state detect.State) detect.Finding {
		return detect.Finding{Detector: "routes", Kind: kind, State: state, Object: detect.Named(object), Says: kind + " " + object + "."}
	}
	p.Found("old", []detect.Finding{
		of("lost", "a", detect.Active), of("odd", "a", detect.Hint), of("lost", "b", detect.Active), of("swapped", "a", detect.Latent),
		of("lost", "c", detect.Active), of("late", "a", detect.Pending),
	})
	p.Loses("old", []string{"a->b", "b->c", "c->d", "d->e", "e->f", "f->g"})
	p.Loses("old", nil)
	got := regexp.MustCompile(`(?m)^.*?s  `).ReplaceAllString(out.String(), "")
	want := `     old                    finding: active lost: lost a. (and 2 more)
     old                    finding: latent swapped: swapped a.
     old                    losing packets: a->b, b->c, c->d, d->e and 2 more
     old                    no running probe loses packets any longer
`
	must.Equal(t, "", want, got)
}

func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, Look{Quiet: true})
		play(p.Scenario("drain"))
		p.Close()
		if out.Len() > 0 {
			t.Errorf("printed %q", &out)
		}
	})
}

// drawn is what a terminal of a size shows of some runs, without trailing spaces.
func drawn(width, height int, now time.Time, runs ...*board) string {
	return strings.Join(painter{width: width}.draw(runs, now, height), "\n") + "\n"
}

// midway is a run at 95 s: the installation of a variant waits.
func midway(at time.Time) *board {
	b := &board{scenario: "drain", loses: map[string][]string{}}
	b.plan(shortRun())
	run := func(scope, name string, from, to time.Duration) {
		ends, _ := b.begin(scope, name, at.Add(from))
		ends(nil, at.Add(to))
		b.over(stepKey{scope, name}, nil, at.Add(to))
	}
	run("lab", "images are there", 0, 300*time.Millisecond)
	run("lab", "lab is up", time.Second, 90*time.Second)
	b.begin("old", "components are installed", at.Add(90*time.Second))
	b.wait("old", await.Sight{What: "pods to run", Saw: "2 of 4", Began: at.Add(91 * time.Second)})
	b.wait("images", await.Sight{What: "unknown", Began: at})
	b.wait("images", await.Sight{What: "unknown", Began: at, Over: true})
	return b
}

// A step that was skipped, and comes after all, is under way: a lab that did not come
// up is taken down at the end.
func TestBoardSkippedStepThatComes(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := midway(at)
	b.over(stepKey{"lab", "lab is down"}, &engine.Skipped{Why: "an earlier step failed"}, at)
	ends, planned := b.begin("lab", "lab is down", at)
	if last := b.steps[len(b.steps)-1]; !planned || last.state != running || b.ended() {
		t.Errorf("%+v", last)
	}
	must.Equal(t, "it took", time.Second, ends(nil, at.Add(time.Second)))
}

func TestBoard(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fresh := func() *board {
		b := &board{scenario: "drain", loses: map[string][]string{}}
		b.plan(shortRun())
		return b
	}
	losing := midway(at)
	losing.loses["old"] = []string{"a->b", "b->a"}
	over := midway(at)
	over.waits = nil
	for _, s := range over.steps {
		if s.state == pending || s.state == running {
			s.state = failed
		}
	}
	long := &board{scenario: "long", loses: map[string][]string{}}
	var steps []engine.Step
	for i := range 40 {
		steps = append(steps, engine.Step{Scope: "old", Name: fmt.Sprint("step ", i+1)})
	}
	long.plan(steps)
	for i := range 20 {
		ends, _ := long.begin("old", fmt.Sprint("step ", i+1), at)
		ends(nil, at.Add(time.Second))
	}
	long.begin("old", "step 21", at.Add(time.Second))
	unplanned := &board{loses: map[string][]string{}}
	unplanned.begin("lab", "registry", at)
	unplanned.wait("lab", await.Sight{What: "a route", Began: at})
	for name, got := range map[string]string{
		"board-at-first":  drawn(60, 24, at, fresh()),
		"board-midway":    drawn(60, 24, at.Add(95*time.Second), losing),
		"board-narrow":    drawn(24, 24, at.Add(95*time.Second), losing),
		"board-short":     drawn(60, 9, at.Add(5*time.Second), long),
		"board-tiny":      drawn(60, 3, at.Add(5*time.Second), long),
		"board-several":   drawn(60, 24, at.Add(95*time.Second), over, midway(at), fresh()),
		"board-unplanned": drawn(60, 24, at.Add(5*time.Second), unplanned),
	} {
		t.Run(name, func(t *testing.T) { goldentest.Compare(t, name+".txt", got) })
	}
}

// However small the terminal is, nothing is wider or higher, and the step under way is there.
func TestBoardFits(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for height := 2; height < 16; height++ {
		for width := 1; width < 70; width += 3 {
			text := drawn(width, height, at.Add(95*time.Second), midway(at))
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			if len(lines) > height {
				t.Errorf("%d lines in %d:\n%s", len(lines), height, text)
			}
			for _, line := range lines {
				if n := len([]rune(line)); n > width {
					t.Errorf("%d columns in %d: %q", n, width, line)
				}
			}
			if width > 20 && !strings.Contains(text, "components") {
				t.Errorf("%dx%d does not show what is under way:\n%s", width, height, text)
			}
		}
	}
}

// onTTY is a terminal as a tty's driver feeds it: a new line begins at its left.
type onTTY struct {
	vt10x.Terminal
	mu  sync.Mutex
	all bytes.Buffer
}

func (t *onTTY) Write(text []byte) (int, error) {
	t.mu.Lock()
	t.all.Write(text)
	t.mu.Unlock()
	_, err := t.Terminal.Write(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
	return len(text), err
}

func (t *onTTY) wrote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

// screen is what is to be seen, without empty lines at the end.
func (t *onTTY) screen() string {
	var lines []string
	for line := range strings.Lines(t.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// until waits until a terminal shows something.
func (t *onTTY) until(tt *testing.T, what string) {
	tt.Helper()
	err := await.Until(tt.Context(), fmt.Sprintf("the terminal to show %q", what), 10*time.Millisecond, time.Minute, func(context.Context) (bool, string, error) {
		text := t.screen()
		return strings.Contains(text, what), text, nil
	})
	must.NoError(tt, err)
}

func terminalOf(t *testing.T, l Look, width, height int) (*onTTY, *Display) {
	t.Helper()
	tty := &onTTY{Terminal: vt10x.New(vt10x.WithSize(width, height))}
	l.Live, l.Log = true, slog.New(slog.DiscardHandler)
	s := &shown{out: tty, Look: l, start: time.Now(), closed: make(chan struct{})}
	s.terminal = &terminal{program: newProgram(s, tty, tea.WithWindowSize(width, height)), over: make(chan struct{})}
	go func() {
		defer close(s.terminal.over)
		if _, err := s.terminal.program.Run(); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(s.Close)
	return tty, &Display{shown: s}
}

// A terminal shows all steps from the first second; what stays is printed above them,
// and at the end they are lines as well, with the cursor below.
func TestTerminal(t *testing.T) {
	tty, d := terminalOf(t, Look{}, 70, 20)
	p := d.Scenario("drain")
	p.Plan(shortRun())
	tty.until(t, "· lab is down")
	done := p.Step("lab", "images are there")
	p.Note("images", "all 3 are in the cache")
	tty.until(t, "all 3 are in the cache\ndrain")
	done(nil)
	p.Over("lab", "images are there", nil)
	tty.until(t, "✔ images are there")
	up := p.Step("lab", "lab is up")
	p.Waits("lab", await.Sight{What: "the API server", Saw: "connection refused", Began: time.Now()})
	tty.until(t, "waits for the API server; last seen: connection refused")
	up(errors.New("no node"))
	d.Close()
	fmt.Fprint(tty, "next\n")
	got := regexp.MustCompile(`\d+\.\ds`).ReplaceAllString(tty.screen(), "0.0s")
	want := strings.ReplaceAll(`   0.0s       images                 all 3 are in the cache
   0.0s  FAIL lab                    lab is up (0.0s): no node
✔ lab                    images are there (0.0s)
✘ lab                    lab is up (0.0s)
next`, "   0.0s  ", "   0.0s  ")
	must.Equal(t, "", want, strings.ReplaceAll(got, "    0.0s  ", "   0.0s  "))
	// The cursor is hidden while something is written, and no longer.
	if hidden, seen := strings.LastIndex(tty.wrote(), "\x1b[?25l"), strings.LastIndex(tty.wrote(), "\x1b[?25h"); hidden > seen {
		t.Error("the cursor is hidden at the end")
	}
	for _, sequence := range []string{"\x1b[?1049h", "\x1b[?2004h", "\x1b[6n", "\x1b]1", " q"} {
		if strings.Contains(tty.wrote(), sequence) {
			t.Errorf("%q changes the terminal, or asks it", sequence)
		}
	}
	for _, code := range []string{"\x1b[31m", "\x1b[32m", "\x1b[1m"} {
		if strings.Contains(tty.wrote(), code) {
			t.Errorf("a colour, %q", code)
		}
	}
	length := len(tty.wrote())
	p.Note("lab", "late")
	if got := tty.wrote()[length:]; !strings.HasSuffix(got, "late\n") || strings.Contains(got, "\x1b") {
		t.Errorf("after Close %q", got)
	}
}

// However many lines come at once, and however long: no more are inserted at a time
// than there is room for above what is drawn.
func TestTerminalFullOfLines(t *testing.T) {
	const width, height = 40, 14
	tty, d := terminalOf(t, Look{}, width, height)
	p := d.Scenario("drain")
	p.Plan(shortRun())
	p.Step("lab", "images are there")
	tty.until(t, "to come")
	for i := range 30 {
		p.Note("lab", fmt.Sprintf("%s line %d\n  and its second", strings.Repeat("long ", i), i))
	}
	tty.until(t, "line 29\n  and its second\ndrain")
	screen := tty.screen()
	if strings.Count(screen, "drain  ") != 1 {
		t.Errorf("drawn more than once:\n%s", screen)
	}
	drawn := strings.Count(screen[strings.Index(screen, "drain  "):], "\n") + 2 // with the cursor's line
	for _, m := range regexp.MustCompile("\x1b\\[(\\d*)L").FindAllStringSubmatch(tty.wrote(), -1) {
		if n, _ := strconv.Atoi(stdcmp.Or(m[1], "1")); n+drawn > height {
			t.Errorf("%d lines inserted above %d in %d", n, drawn, height)
		}
	}
}

// A terminal that gets smaller shows less.
func TestTerminalResized(t *testing.T) {
	tty, d := terminalOf(t, Look{Color: true}, 70, 20)
	p := d.Scenario("drain")
	p.Plan(shortRun())
	p.Step("lab", "images are there")
	tty.until(t, "· lab is down")
	tty.Resize(40, 10)
	d.terminal.program.Send(tea.WindowSizeMsg{Width: 40, Height: 10})
	tty.until(t, "steps to come")
	tty.until(t, "images are there")
	if !strings.Contains(tty.wrote(), "\x1b[1mdrain") {
		t.Error("no colours")
	}
}

// A component's words come from a lab, and do not command the terminal.
func TestForeignText(t *testing.T) {
	var out bytes.Buffer
	d := New(&out, Look{Color: true})
	d.Found("old", []detect.Finding{{Kind: "unannounced", State: detect.Active, Says: "FAIL\rPASS\x1b]0;owned\a"}})
	d.Close()
	if text := out.String(); strings.ContainsAny(text, "\r\a") || strings.Contains(text, "\x1b]") || !strings.Contains(text, "\x1b[31mfinding: active unannounced\x1b[0m: FAIL\\x0dPASS") {
		t.Errorf("it prints %q", text)
	}
}

// Where there are several runs, lines say which one they are of.
func TestSeveral(t *testing.T) {
	var out bytes.Buffer
	d := New(&out, Look{Several: true})
	d.Scenario("drain").Note("lab", "it is up")
	d.Close()
	must.Contain(t, out.String(), "drain lab ")
}
