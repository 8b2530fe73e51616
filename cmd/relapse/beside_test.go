package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/detect"
)

// What is sent from one process to another is drawn as if it had been told there.
func TestSentIsAsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drawn := func(fill func(*display)) []string {
			d := newDisplay(io.Discard, look{quiet: true})
			fill(d)
			d.Close()
			lines := painter{look{}, 100, 0}.draw(d.runs, time.Now(), 40)
			return append(lines, painter{look{}, 100, 0}.record(d.runs[0])...)
		}
		var sent bytes.Buffer
		s := newSender(&sent)
		play(s)
		s.Loses("old", []string{"out->a"})
		s.Found("old", []detect.Finding{{State: detect.Active, Kind: "told", Says: "it is lost"}})
		var told []string
		direct := drawn(func(d *display) {
			p := d.Scenario("drain")
			play(p)
			p.Loses("old", []string{"out->a"})
		})
		// Times are those of receiving: without the waits of the bubble there are none.
		taken := func(lines []string) []string {
			var all []string
			for _, line := range lines {
				words := strings.Fields(line)
				for i, w := range words {
					if _, err := time.ParseDuration(strings.Trim(w, "()")); err == nil {
						words[i] = "T"
					}
				}
				all = append(all, strings.Join(words, " "))
			}
			return all
		}
		told = drawn(func(d *display) {
			if err := receive(&sent, d.Scenario("drain")); err != nil {
				t.Error(err)
			}
		})
		if diff := cmp.Diff(taken(direct), taken(told)); diff != "" {
			t.Errorf("told and sent differ (-told +sent):\n%s", diff)
		}
	})
}

// A process that is killed ends in the middle of a line.
func TestReceiveWhatWasCutOff(t *testing.T) {
	d := newDisplay(io.Discard, look{quiet: true})
	defer d.Close()
	err := receive(strings.NewReader(`{"note":"a"}`+"\n"+`{"note":`), d.Scenario("drain"))
	if err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("%v; want that it was cut off", err)
	}
}

// Where several runs are on one terminal, lines say which one they are of.
func TestSeveralOnATerminal(t *testing.T) {
	var out bytes.Buffer
	d := newDisplay(&out, look{several: true})
	d.Scenario("drain").Note("lab", "it is up")
	d.Close()
	if got := out.String(); !strings.Contains(got, "drain lab ") {
		t.Errorf("it says %q", got)
	}
}
