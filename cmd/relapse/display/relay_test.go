package display

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework/detect"
)

// Progress that another process sends is drawn like that of this process.
func TestSentIsDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drawn := func(fill func(*Display)) []string {
			d := New(io.Discard, Look{Quiet: true})
			fill(d)
			d.Close()
			lines := painter{Look{}, 100, 0}.draw(d.runs, time.Now(), 40)
			for _, s := range d.runs[0].steps {
				lines = append(lines, fmt.Sprint(s.across))
			}
			return append(lines, painter{Look{}, 100, 0}.record(d.runs[0])...)
		}
		var sent bytes.Buffer
		s := newSender(&sent)
		play(s)
		s.Loses("old", []string{"out->a"})
		s.Found("old", []detect.Finding{{State: detect.Active, Kind: "lost", Says: "it is lost"}})
		direct := drawn(func(d *Display) {
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
		received := drawn(func(d *Display) {
			if err := Receive(&sent, d.Scenario("drain")); err != nil {
				t.Error(err)
			}
		})
		if diff := cmp.Diff(taken(direct), taken(received)); diff != "" {
			t.Errorf("they differ (-direct +received):\n%s", diff)
		}
	})
}

// A process that is killed ends in the middle of a line.
func TestReceiveWhatWasCutOff(t *testing.T) {
	d := New(io.Discard, Look{Quiet: true})
	defer d.Close()
	err := Receive(strings.NewReader(`{"note":"a"}`+"\n"+`{"note":`), d.Scenario("drain"))
	if err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("%v; want that it was cut off", err)
	}
}

// Where several runs are on one terminal, lines say which one they are of.
func TestSeveralOnATerminal(t *testing.T) {
	var out bytes.Buffer
	d := New(&out, Look{Several: true})
	d.Scenario("drain").Note("lab", "it is up")
	d.Close()
	if got := out.String(); !strings.Contains(got, "drain lab ") {
		t.Errorf("it says %q", got)
	}
}
