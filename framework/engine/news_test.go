package engine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

// A probe that lost packets has recovered when it gets answers again, not when it is stopped.
func TestLosing(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	// The window is the second to which slots 100 to 199 belong.
	const first, last = 100, 199
	for _, test := range []struct {
		name           string
		sent, answered wire.Runs
		stopped, gone  time.Time
		before, after  bool // whether it loses packets
	}{
		{name: "no loss", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, last}}},
		{name: "loses packets", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, first + 49}}, after: true},
		{name: "gets answers again", sent: wire.Runs{{0, last}}, answered: wire.Runs{{0, 49}, {first, last}}, before: true},
		{name: "stopped while it lost packets", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, 49}}, stopped: at(1100), before: true, after: true},
		{name: "stopped without loss", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, first + 9}}, stopped: at(1100)},
		{name: "started, and nothing known yet", before: true, after: true},
		{name: "its endpoint is gone", sent: wire.Runs{{0, first + 9}}, answered: wire.Runs{{0, 49}}, gone: at(1100), before: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := probe.Probe{From: "out", To: "a", Interval: 10 * time.Millisecond}.WithDefaults()
			stored := probe.Stored{
				Record: probe.Record{Probe: p, Started: began, Reported: at(2400), FarReported: at(2400), Stopped: test.stopped, Gone: test.gone},
				Sent:   test.sent, Answered: test.answered, Seen: test.answered,
			}
			names := map[bool][]string{true: {p.Name}}
			got := losing([]probe.Timeline{stored.At(at(2400))}, names[test.before], at(first*10), at((last+1)*10))
			must.Equal(t, "losing packets", names[test.after], got, cmpopts.EquateEmpty())
		})
	}
}
