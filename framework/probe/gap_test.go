package probe

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// What was not sent, and what has no known outcome, is no gap, but silence: no answer.
func TestLongest(t *testing.T) {
	gap, silence := (*Timeline).LongestGap, (*Timeline).LongestSilence
	for _, c := range []struct {
		name         string
		longest      func(line *Timeline, from, to time.Time, oneWay bool) Gap
		slots        string
		from, to     int // ms
		want, oneWay time.Duration
		began        int
	}{
		{"no loss", gap, "......", 0, 1000, 0, 0, 0},
		{"one packet", gap, "..q...", 0, 1000, 10 * time.Millisecond, 10 * time.Millisecond, 20},
		{"the longest of two", gap, ".q..qqq..", 0, 1000, 30 * time.Millisecond, 30 * time.Millisecond, 40},
		{"a reply that was lost is no gap one way", gap, ".rr.q.", 0, 1000, 20 * time.Millisecond, 10 * time.Millisecond, 10},
		{"slots that were not sent do not end it", gap, ".q__q.", 0, 1000, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"up to the last that was sent", gap, "..qq", 0, 1000, 20 * time.Millisecond, 20 * time.Millisecond, 20},
		{"one that goes on after the time is whole", gap, "..qqqq.", 0, 30, 40 * time.Millisecond, 40 * time.Millisecond, 20},
		{"of one that began before it is the rest", gap, "..qqqq.", 40, 1000, 20 * time.Millisecond, 20 * time.Millisecond, 40},
		{"one that begins after the time is another's", gap, "...q.", 0, 30, 0, 0, 0},
		{"all is answered", silence, "......", 0, 60, 0, 0, 0},
		{"a loss", silence, "..q...", 0, 60, 10 * time.Millisecond, 10 * time.Millisecond, 20},
		{"slots that were not sent", silence, ".____.", 0, 60, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"slots that were not sent, and then a loss", silence, ".__q.", 0, 50, 30 * time.Millisecond, 30 * time.Millisecond, 10},
		{"a lost reply is an answer one way", silence, ".rr__.", 0, 60, 40 * time.Millisecond, 20 * time.Millisecond, 10},
		{"a sender that ends before the time", silence, "..", 0, 100, 80 * time.Millisecond, 80 * time.Millisecond, 20},
		{"silence that goes on after the time", silence, ".____.", 0, 20, 40 * time.Millisecond, 40 * time.Millisecond, 10},
		{"silence that begins after the time", silence, "..__.", 0, 20, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			line := draw(c.slots, 1000)
			got := c.longest(line, ms(c.from), ms(c.to), false)
			if got.Lasted != c.want || got.Lasted > 0 && !got.Began.Equal(ms(c.began)) {
				t.Errorf("%s from %s, want %s from %s", got.Lasted, got.Began, c.want, ms(c.began))
			}
			must.Equal(t, "one way", c.oneWay, c.longest(line, ms(c.from), ms(c.to), true).Lasted)
		})
	}
	must.Equal(t, "a probe that was not started", 50*time.Millisecond, (&Timeline{}).LongestSilence(ms(0), ms(50), false).Lasted)
}

func TestOneWay(t *testing.T) {
	line := draw("..rrq_.q", 1000)
	must.Equal(t, "", Counts{Sent: 7, Received: 5, Lost: 2, LostRequest: 2, Skipped: 1}, line.OneWay(ms(0), ms(1000)))
	must.Equal(t, "two requests that arrived", Counts{Sent: 2, Received: 2}, line.OneWay(ms(20), ms(40)))
	line.FarReported = time.Time{} // it has not reported
	line.seen = nil
	want := Counts{Sent: 7, Received: 3, Unjudged: 4, Skipped: 1}
	must.Equal(t, "where the far end does not report", want, line.OneWay(ms(0), ms(1000)))
}
