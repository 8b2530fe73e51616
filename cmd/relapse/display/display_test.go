package display

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		{Scope: "old", Name: "fault"},
		{Scope: "old", Name: "verdict is reproduced"},
		{Scope: "lab", Name: "lab is down"},
	}
}

// play reports the beginning of a run: its images are built, and its lab fails after two of its parts. One part waits.
func play(p engine.Progress) {
	p.Plan(shortRun())
	images := p.Step("lab", "images are there")
	build := await.Sight{What: "relapse.dev/tor:dev", Saw: "compiling 12 of 40 packages: net", Began: time.Now()}
	p.Waits("images", build)
	time.Sleep(20 * time.Second) // synctest's time
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

func displayed(l Look, run func(*Display)) string {
	var out bytes.Buffer
	d := New(&out, l)
	run(d)
	d.Close()
	return out.String()
}

// A pipe gets plain lines: one when a step ends, and one at least every 15 s while a step runs.
func TestProgressInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := displayed(Look{}, func(p *Display) {
			play(p.Scenario("drain"))
			p.Close() // the deferred one comes after the run's own
		})
		want := `  15.0s  ...  lab                    images are there (15.0s so far): relapse.dev/tor:dev: compiling 12 of 40 packages: net
  20.0s       images                 relapse.dev/tor:dev built in 20.0 s (40 packages)
  20.0s  ok   lab                    images are there (20.0s)
  21.5s  ok   lab                    registry (0.5s)
  36.5s  FAIL lab                    cluster k8s (16.5s): no node
  36.5s  FAIL lab                    lab is up (16.5s): no node
`
		// At 36.5 s two lines are due at the same moment, in any order.
		got = regexp.MustCompile(`(?m)^  3[56]\.[05]s  \.\.\. .*\n`).ReplaceAllString(got, "")
		must.Equal(t, "", want, got)
	})
}

// The log has the beginning and the end of each step, in order of time.
func TestStepsAreInTheLog(t *testing.T) {
	var out, log bytes.Buffer
	p := New(&out, Look{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
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
	must.Equal(t, "", want, regexp.MustCompile(`(?m)^time=\S+ `).ReplaceAllString(log.String(), ""))
}

// While a step runs, at most 15 s pass without a line, also in a run without planned steps.
func TestProgressIsNeverSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := displayed(Look{}, func(p *Display) {
			done := p.Step("lab", "control plane boots")
			time.Sleep(50 * time.Second)
			done(nil)
			time.Sleep(time.Minute) // nothing lasts
		})
		want := `  15.0s  ...  lab                    control plane boots (15.0s so far)
  30.0s  ...  lab                    control plane boots (30.0s so far)
  45.0s  ...  lab                    control plane boots (45.0s so far)
  50.0s  ok   lab                    control plane boots (50.0s)
`
		must.Equal(t, "", want, got)
	})
}

func TestProgressShowsFindingsAndLosses(t *testing.T) {
	finding := func(kind, object string, state detect.State) detect.Finding {
		return detect.Finding{Detector: "routes", Kind: kind, State: state, Object: detect.Named(object), Says: kind + " " + object + "."}
	}
	got := displayed(Look{}, func(p *Display) {
		p.Found("old", []detect.Finding{
			finding("lost", "a", detect.Active), finding("odd", "a", detect.Hint), finding("lost", "b", detect.Active), finding("swapped", "a", detect.Latent),
			finding("lost", "c", detect.Active), finding("late", "a", detect.Pending),
		})
		p.Loses("old", []string{"a->b", "b->c", "c->d", "d->e", "e->f", "f->g"})
		p.Loses("old", nil)
	})
	got = regexp.MustCompile(`(?m)^.*?s  `).ReplaceAllString(got, "")
	want := `     old                    finding: active lost: lost a. (and 2 more)
     old                    finding: latent swapped: swapped a.
     old                    losing packets: a->b, b->c, c->d, d->e and 2 more
     old                    no running probe loses packets any longer
`
	must.Equal(t, "", want, got)
}

// onTerminal returns a display on a terminal, and a function that returns the screen.
func onTerminal(l Look, width, height int) (d *Display, screen func() string) {
	var out bytes.Buffer
	l.Live = true
	d = start(&out, l, func() (int, int) { return width, height })
	return d, func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		var lines []string
		text := out.String()
		for {
			at := erase.FindStringSubmatchIndex(text)
			if at == nil {
				return strings.Join(append(lines, text), "")
			}
			lines = slices.AppendSeq(lines, strings.Lines(text[:at[0]]))
			n, _ := strconv.Atoi(text[at[2]:at[3]])
			lines, text = lines[:len(lines)-n], text[at[1]:]
		}
	}
}

// erase matches the sequence that erases the lines of the steps: cursor up, and erase below.
var erase = regexp.MustCompile("\r\x1b\\[(\\d+)A\x1b\\[J")

// A terminal gets the same lines as a pipe, and below them all steps, from the first second to the end.
func TestTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, screen := onTerminal(Look{}, 100, 24)
		defer d.Close()
		p := d.Scenario("drain")
		p.Plan(shortRun())
		images := p.Step("lab", "images are there")
		time.Sleep(1100 * time.Millisecond) // synctest's time
		images(nil)
		p.Over("lab", "images are there", nil)
		up := p.Step("lab", "lab is up")
		registry := p.Step("lab", "registry")
		p.Waits("lab", await.Sight{What: "the API server", Saw: "connection\n refused", Began: time.Now()})
		p.Loses("old", []string{"a->b", "b->a"})
		time.Sleep(89 * time.Second)
		goldentest.Compare(t, "terminal.txt", screen())
		registry(nil)
		up(errors.New("no node"))
		d.Close()
		p.Note("lab", "late")
		must.Equal(t, "", `   1.1s  ok   lab                    images are there (1.1s)
   1.1s       old                    losing packets: a->b, b->a
  90.1s  ok   lab                    registry (89.0s)
  90.1s  FAIL lab                    lab is up (89.0s): no node
  90.1s       lab                    late
`, screen())
	})
}

// On a terminal of any size, a step has one row, the steps leave some rows free, and the running step is shown.
func TestDrawnFits(t *testing.T) {
	for height := 2; height < 16; height++ {
		for width := 2; width < 70; width += 3 {
			synctest.Test(t, func(t *testing.T) {
				d, screen := onTerminal(Look{}, width, height)
				defer d.Close()
				p := d.Scenario("drain")
				p.Plan(shortRun())
				done := p.Step("lab", "images are there")
				done(nil)
				p.Over("lab", "images are there", nil)
				p.Step("lab", "lab is up")
				d.Scenario("later").Plan(shortRun())
				time.Sleep(time.Second)
				text := strings.TrimSuffix(screen(), "\n")
				lines := strings.Split(text, "\n")[1:] // the first step's
				must.Equal(t, text, true, len(lines) <= max(1, height-above))
				for _, line := range lines {
					must.Equal(t, line, true, len([]rune(line)) < width)
				}
				if height > above+2 && width > 20 {
					must.Contain(t, text, "lab is up")
				}
			})
		}
	}
}

// Control characters in texts of a component do not reach the terminal.
func TestForeignText(t *testing.T) {
	hostile := detect.Finding{Kind: "unannounced", State: detect.Active, Says: "FAIL\rPASS\x1b]0;owned\a"}
	text := displayed(Look{Color: true}, func(d *Display) { d.Found("old", []detect.Finding{hostile}) })
	must.Contain(t, text, "\x1b[31mfinding: active unannounced\x1b[0m: FAIL\\x0dPASS")
	must.Equal(t, text, false, strings.ContainsAny(text, "\r\a") || strings.Contains(text, "\x1b]"))
}

// With several runs, each line names its run.
func TestSeveral(t *testing.T) {
	must.Contain(t, displayed(Look{Several: true}, func(d *Display) { d.Scenario("drain").Note("lab", "it is up") }), "drain lab ")
}
