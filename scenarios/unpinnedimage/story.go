package unpinnedimage

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// event is something that happened to one node while kube-router was rolled.
type event struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	What string    `json:"what"`
}

// story tells of a rollout, node by node, from the snapshots that the
// detectors see.
type story struct {
	run    *framework.Run
	last   snapshot.Snapshot
	events []event
}

// tell tells the story of what do does, and keeps it as evidence.
func tell(r *framework.Run, name string, do func() error) error {
	s := story{run: r, last: r.Snapshot(), events: []event{}}
	ended := make(chan time.Time, 1)
	var telling sync.WaitGroup
	telling.Go(func() {
		var end time.Time
		for {
			select {
			case end = <-ended:
			case <-time.After(lookEvery):
			}
			s.look()
			if !end.IsZero() && (s.last.Time.After(end) || time.Since(end) > lastLookWithin) {
				return
			}
		}
	})
	err := do()
	ended <- time.Now()
	telling.Wait()
	r.Evidence("story-"+name, s.events)
	return err
}

const (
	// lookEvery is half the time between two snapshots.
	lookEvery = 100 * time.Millisecond
	// lastLookWithin bounds the wait for a snapshot of how it ended.
	lastLookWithin = time.Second
)

// look tells what changed since the last look. What could not be read has not
// changed.
func (s *story) look() {
	now := s.run.Snapshot()
	if !now.Time.After(s.last.Time) || len(now.Unread()) > 0 {
		return
	}
	for _, e := range changes(s.last, now) {
		s.events = append(s.events, e)
		s.run.Note(e.Node + ": " + e.What)
	}
	s.last = now
}

// state is what a snapshot says of kube-router on one node.
type state struct {
	pod     string // UID
	digest  string
	trouble string
	session bool
	route   bool
}

// changes lists what changed for the nodes, in their order.
func changes(before, after snapshot.Snapshot) []event {
	var events []event
	for _, name := range all {
		was, is := stateOf(before, name), stateOf(after, name)
		tell := func(format string, args ...any) {
			events = append(events, event{after.Time, name, fmt.Sprintf(format, args...)})
		}
		if was.pod != is.pod && is.pod == "" {
			tell("its kube-router pod is gone")
		} else if was.pod != is.pod {
			tell("a new kube-router pod")
		}
		if is.digest != "" && (was.digest != is.digest || was.pod != is.pod) {
			tell("kube-router runs %s", is.digest)
		}
		if is.trouble != "" && is.trouble != was.trouble {
			tell("kube-router: %s", is.trouble)
		}
		switch {
		case was.session && !is.session:
			tell("tor has lost the session")
		case !was.session && is.session:
			tell("tor has a session")
		}
		switch {
		case was.route && !is.route:
			tell("tor has dropped the route")
		case !was.route && is.route:
			tell("tor has a route")
		}
	}
	return events
}

func stateOf(s snapshot.Snapshot, name string) state {
	var is state
	for _, p := range s.PodImages.Items {
		if p.OwnerKind != "DaemonSet" || p.OwnerName != "kube-router" || p.Node != name {
			continue
		}
		is.pod = p.UID
		for _, c := range p.Containers {
			if c.Name == "kube-router" {
				is.digest, is.trouble = c.Pulled(), c.Trouble
			}
		}
	}
	addr, _ := lab.AddressOn(name, "nodes")
	for _, t := range s.Routers {
		is.session = slices.ContainsFunc(t.Neighbors.Items, func(n snapshot.Neighbor) bool {
			return n.Address == addr && n.State == router.StateEstablished
		})
		is.route = slices.ContainsFunc(t.Paths.Items, func(p snapshot.Path) bool { return p.Neighbor == addr })
	}
	return is
}
