package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// State is what kube-proxy reports at one moment.
type State struct {
	At   time.Time
	Mode Mode
	// Syncs is how many syncs it has finished since it was started.
	Syncs int
	// Waiting are the numbers of its goroutines that wait for the kernel's answer about IPVS.
	Waiting []int
	// Walked is how many entries of the graceful-termination list its log mentions, for the watched
	// Service: each once when it is added to the list, and once with each tick.
	Walked int
}

// String is the state in one line, without the time.
func (l State) String() string {
	return fmt.Sprintf("%d syncs finished, %d log lines about endpoints to be deleted, %d goroutines wait for IPVS", l.Syncs, l.Walked,
		len(l.Waiting))
}

// syncMetric counts finished syncs; it is 1.13's name.
const syncMetric = "kubeproxy_sync_proxy_rules_latency_microseconds_count"

// pollWithin bounds a poll: on a busy machine one took 6 s.
const pollWithin = 30 * time.Second

// State reads the state of kube-proxy. If it does not answer, or a part of the answer is
// missing, that is an error.
func (p Proxy) State(ctx context.Context, lab *kindlab.Lab) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	said, err := p.query().Ask(ctx, lab.Node(p.Node))
	if err != nil {
		return State{}, err
	}
	return stateOf(said, time.Now())
}

// query asks for all of a State, in one command.
func (p Proxy) query() snapshot.ProxyQuery {
	return snapshot.ProxyQuery{
		Counters: []string{syncMetric}, Goroutines: true, LogLines: fmt.Sprintf("Trying to delete rs: %s", p.Watched),
	}
}

// stateOf makes a State of kube-proxy's answers. Missing metrics must not count as no
// syncs, nor a missing dump as no goroutines.
func stateOf(said snapshot.Proxy, at time.Time) (State, error) {
	switch {
	case said.Mode == "":
		return State{}, errors.New("asking kube-proxy for its mode: it does not answer")
	case said.Counters == nil:
		return State{}, errors.New("asking kube-proxy for its metrics: it does not answer")
	case !said.Dumped:
		return State{}, errors.New("asking kube-proxy for its goroutines: it does not answer; does it run with --profiling?")
	}
	// The counter appears with the first sync.
	return State{
		At: at, Mode: Mode(said.Mode), Syncs: int(said.Counters[syncMetric]), Walked: said.LogLines,
		Waiting: each.Of(said.Goroutines, func(g snapshot.Goroutine) int { return g.ID }),
	}, nil
}

// RunsIn asks kube-proxy which mode it runs in: it falls back to another if it cannot run
// in the configured one.
func (p Proxy) RunsIn(ctx context.Context, lab *kindlab.Lab) (Mode, error) {
	mode, err := lab.Node(p.Node).Exec(ctx, "curl", "-sS", "-m", "5", "http://127.0.0.1:10249/proxyMode")
	return Mode(mode), err
}

const (
	// pollsHung is how many polls in a row must show the same goroutines waiting for IPVS,
	// and no sync finished, before kube-proxy counts as hung. Two goroutines of a healthy
	// kube-proxy may both be in a call at one poll, and again at the next.
	pollsHung = 3
	// FrozenFor is how long a kube-proxy may go without finishing a sync before it counts as
	// stopped, regardless of its goroutines. It should sync every five seconds; the slowest sync
	// that was seen on a busy machine, without hardware support for guests, took 38 s.
	FrozenFor = 2 * time.Minute
)

// Hang reports after each poll whether kube-proxy hangs. The zero value has seen nothing.
type Hang struct {
	// Last is the newest state.
	Last State

	alike int       // polls in a row, up to the last, with the same goroutines waiting and no sync
	since time.Time // when the last poll's count of syncs was seen first
}

// See takes the state of one more poll, and reports whether kube-proxy hangs.
func (h *Hang) See(l State) bool {
	synced := h.since.IsZero() || l.Syncs != h.Last.Syncs
	if synced {
		h.since = l.At
	}
	if synced || !slices.Equal(l.Waiting, h.Last.Waiting) {
		h.alike = 0
	}
	h.alike++
	h.Last = l
	return len(l.Waiting) > 1 && h.alike >= pollsHung || l.At.Sub(h.since) >= FrozenFor
}
