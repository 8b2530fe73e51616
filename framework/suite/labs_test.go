package suite

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

type empty struct{ sources []snapshot.Asked }

func (e empty) Collect(context.Context) snapshot.Snapshot {
	return snapshot.Snapshot{Sources: e.sources}
}
func (empty) Timeout() time.Duration { return time.Second }
func (empty) Close() error           { return nil }

// A lab that lost its isolation is said so by the next poll, and by none before.
func TestIsolationIsPolled(t *testing.T) {
	var gone error
	r := watched{empty{make([]snapshot.Asked, 0, 8)}, func() error { return gone }}
	d := &history.Detection{Every: time.Second}
	var said [][]snapshot.Missing
	for _, gone = range []error{nil, errors.New("nftables table relapse-x has 0 of 4 rules"), nil} {
		said = append(said, d.Poll(r.Collect(t.Context()), time.Now()).Unavailable)
	}
	if want := []snapshot.Missing{{Source: snapshot.Isolation, Reason: "nftables table relapse-x has 0 of 4 rules"}}; len(said[0])+len(said[2]) > 0 || !slices.Equal(said[1], want) {
		t.Errorf("polls say %q, want %q from the second alone", said, want)
	}
}

func TestAtOnce(t *testing.T) {
	for _, m := range []struct{ cpus, gib, want int }{{1, 2, 1}, {2, 4, 1}, {2, 8, 2}, {2, 24, 2}, {4, 16, 4}, {16, 24, 6}} {
		if got := AtOnce(m.cpus, m.gib); got != m.want {
			t.Errorf("%d CPUs, %d GiB: %d, want %d", m.cpus, m.gib, got, m.want)
		}
	}
}
