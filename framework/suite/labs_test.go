package suite

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

type empty struct{ sources []snapshot.Asked }

func (e empty) Collect(context.Context) snapshot.Snapshot {
	return snapshot.Snapshot{Sources: e.sources}
}
func (empty) Timeout() time.Duration { return time.Second }
func (empty) Close() error           { return nil }

// The first poll after a lab has lost its isolation says so, and no earlier poll does.
func TestIsolationIsPolled(t *testing.T) {
	var gone error
	r := watched{empty{make([]snapshot.Asked, 0, 8)}, func() error { return gone }}
	d := &history.Detection{Every: time.Second}
	var said [][]snapshot.Missing
	for _, gone = range []error{nil, errors.New("nftables table relapse-x has 0 of 4 rules"), nil} {
		said = append(said, d.Poll(r.Collect(t.Context()), time.Now()).Unavailable)
	}
	want := []snapshot.Missing{{Source: snapshot.Isolation, Reason: "nftables table relapse-x has 0 of 4 rules"}}
	must.Equal(t, "polls say", [][]snapshot.Missing{nil, want, nil}, said, cmpopts.EquateEmpty())
}

func TestAtOnce(t *testing.T) {
	for _, m := range []struct{ cpus, gib, want int }{{1, 2, 1}, {2, 4, 1}, {2, 8, 2}, {2, 24, 2}, {4, 16, 4}, {16, 24, 6}} {
		must.Equal(t, m, m.want, AtOnce(m.cpus, m.gib))
	}
}
