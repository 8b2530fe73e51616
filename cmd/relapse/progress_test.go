package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// steps plays a run with two steps side by side.
func steps(p *progress) {
	first := p.Step("lab", "cluster k8s")
	time.Sleep(time.Second) // of the bubble
	second := p.Step("lab", "registry")
	time.Sleep(500 * time.Millisecond)
	second(nil)
	p.Note("images", "relapse.dev/tor:dev: compiling")
	first(errors.New("no node"))
}

// A pipe gets plain lines: one for each step, when it ends.
func TestProgressInAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, false, false)
		steps(p)
		p.Close()
		p.Close() // as a deferred one does after the run's own
		want := `   1.5s  ok   lab                    registry (0.5s)
   1.5s       images                 relapse.dev/tor:dev: compiling
   1.5s  FAIL lab                    cluster k8s (1.5s): no node
`
		if got := out.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

// A terminal sees what is under way in between, in one line that goes.
func TestProgressOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, true, true)
		steps(p)
		p.Close()
		p.Close()
		got := out.String()
		for _, want := range []string{"cluster k8s 1.0s | registry 0.0s", "\x1b[32mok  \x1b[0m lab", "\x1b[31mFAIL\x1b[0m lab"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in %q", want, got)
			}
		}
		if !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("the last line is left standing: %q", got[max(0, len(got)-40):])
		}
		length := len(got)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.Note("lab", "late"); strings.Contains(out.String()[length:], "\x1b[K") {
			t.Error("redrawn after Close")
		}
	})
}

func TestProgressStaysOnOneLine(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, true, false)
	defer p.Close()
	for range 20 {
		p.Step("lab", "näme of a step")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	last := out.String()[strings.LastIndex(out.String(), "\x1b[K")+len("\x1b[K"):]
	if n := utf8.RuneCountInString(last); n > 100 || !utf8.ValidString(last) {
		t.Errorf("%d characters: %q", n, last)
	}
}
