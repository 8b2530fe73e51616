package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress shows what a run is doing. Each step is a line when it ends; on a
// terminal the steps under way stand below, with their times.
type progress struct {
	out   io.Writer
	live  bool // a terminal: the last line is redrawn
	color bool
	start time.Time

	mu     sync.Mutex
	steps  []*step // under way, oldest first
	ticker *time.Ticker
	close  sync.Once
	closed chan struct{}
}

type step struct {
	scope, name string
	began       time.Time
}

func newProgress(out io.Writer, live, color bool) *progress {
	p := &progress{out: out, live: live, color: color, start: time.Now(), closed: make(chan struct{})}
	if live {
		p.ticker = time.NewTicker(200 * time.Millisecond)
		go func() {
			for {
				select {
				case <-p.ticker.C:
					p.mu.Lock()
					p.redraw()
					p.mu.Unlock()
				case <-p.closed:
					return
				}
			}
		}()
	}
	return p
}

// Close ends the redrawing, and clears the line. It can be called more than
// once.
func (p *progress) Close() {
	p.close.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.live {
			return
		}
		p.ticker.Stop()
		close(p.closed)
		p.live = false
		fmt.Fprint(p.out, "\r\x1b[K")
	})
}

// Step begins a step of a scope (a variant, or the lab); the function that
// it returns ends it.
func (p *progress) Step(scope, name string) func(error) {
	s := &step{scope: scope, name: name, began: time.Now()}
	p.mu.Lock()
	p.steps = append(p.steps, s)
	p.redraw()
	p.mu.Unlock()
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range p.steps {
			if p.steps[i] == s {
				p.steps = append(p.steps[:i], p.steps[i+1:]...)
				break
			}
		}
		mark, detail := p.paint("ok  ", 32), ""
		if err != nil {
			mark, detail = p.paint("FAIL", 31), ": "+err.Error()
		}
		p.line(fmt.Sprintf("%s %-22s %s (%s)%s", mark, s.scope, s.name, seconds(time.Since(s.began)), detail))
	}
}

// Note prints a line of its own.
func (p *progress) Note(scope, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(fmt.Sprintf("     %-22s %s", scope, text))
}

func (p *progress) line(text string) {
	if p.live {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "%7s  %s\n", seconds(time.Since(p.start)), text)
	p.redraw()
}

func (p *progress) redraw() {
	if !p.live {
		return
	}
	var now []string
	for _, s := range p.steps {
		now = append(now, fmt.Sprintf("%s %s", s.name, seconds(time.Since(s.began))))
	}
	text := strings.Join(now, " | ")
	if runes := []rune(text); len(runes) > 100 { // several steps at once must still fit into one line
		text = string(runes[:99]) + "…"
	}
	fmt.Fprint(p.out, "\r\x1b[K"+p.paint(text, 2))
}

func (p *progress) paint(text string, code int) string {
	if !p.color {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, text)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
