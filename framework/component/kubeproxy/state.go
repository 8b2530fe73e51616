package kubeproxy

import (
	"context"
	"errors"
	"fmt"
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
