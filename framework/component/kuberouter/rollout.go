package kuberouter

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Node is a node of the cluster, with the address at which routers know it.
type Node struct {
	Name    string
	Address netip.Addr
}

// State is what a snapshot says of kube-router on one node. It needs the
// snapshot's pods with their images, and the routers' neighbours and paths.
type State struct {
	// Pod is the pod's UID; empty if there is none.
	Pod string
	// Digest is that of the image that runs; empty if it is not known yet.
	Digest string
	// Trouble says why the container does not run; empty if it does.
	Trouble string
	// Session and Route report whether a router has a session with the node, and a
	// path from it.
	Session, Route bool
}

// StateOf reads a node's state from a snapshot.
func StateOf(s snapshot.Snapshot, node Node) State {
	var state State
	for _, p := range s.PodImages.Items {
		if p.OwnerKind != "DaemonSet" || p.OwnerName != Agent.Name || p.Node != node.Name {
			continue
		}
		state.Pod = p.UID
		for _, c := range p.Containers {
			if c.Name == Agent.Name {
				state.Digest, state.Trouble = c.Pulled(), c.Trouble
			}
		}
	}
	for _, r := range s.Routers {
		_, up := r.Session(node.Address)
		state.Session = state.Session || up
		state.Route = state.Route || slices.ContainsFunc(r.Paths.Items, func(p snapshot.Path) bool { return p.Neighbor == node.Address })
	}
	return state
}

// Event is something that happened to one node while kube-router was rolled.
type Event struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	What string    `json:"what"`
}

const (
	// lookEvery is half the time between two snapshots of the detectors.
	lookEvery = 100 * time.Millisecond
	// lastLookWithin bounds the wait for a snapshot of how it ended.
	lastLookWithin = time.Second
)

// Tell does something to kube-router, and reports what happens on each node
// meanwhile: it notes each event when it is seen, and returns all of them in
// order. Latest returns the newest snapshot. The error is that of do.
func Tell(nodes []Node, latest func() snapshot.Snapshot, note func(string), do func() error) ([]Event, error) {
	last, events := latest(), []Event{}
	look := func() {
		now := latest()
		// What could not be read has not changed.
		if !now.Time.After(last.Time) || len(now.Unread()) > 0 {
			return
		}
		for _, e := range changes(nodes, last, now) {
			events = append(events, e)
			note(e.Node + ": " + e.What)
		}
		last = now
	}
	ended := make(chan time.Time, 1)
	var telling sync.WaitGroup
	telling.Go(func() {
		var end time.Time
		for {
			select {
			case end = <-ended:
			case <-time.After(lookEvery):
			}
			look()
			if !end.IsZero() && (last.Time.After(end) || time.Since(end) > lastLookWithin) {
				return
			}
		}
	})
	err := do()
	ended <- time.Now()
	telling.Wait()
	return events, err
}

// changes lists what changed for the nodes, in their order.
func changes(nodes []Node, before, after snapshot.Snapshot) []Event {
	var events []Event
	for _, node := range nodes {
		old, now := StateOf(before, node), StateOf(after, node)
		tell := func(format string, args ...any) {
			events = append(events, Event{after.Time, node.Name, fmt.Sprintf(format, args...)})
		}
		if old.Pod != now.Pod && now.Pod == "" {
			tell("its kube-router pod was deleted")
		} else if old.Pod != now.Pod {
			tell("a new kube-router pod")
		}
		if now.Digest != "" && (old.Digest != now.Digest || old.Pod != now.Pod) {
			tell("kube-router runs %s", now.Digest)
		}
		if now.Trouble != "" && now.Trouble != old.Trouble {
			tell("kube-router: %s", now.Trouble)
		}
		switch {
		case old.Session && !now.Session:
			tell("its BGP session is lost")
		case !old.Session && now.Session:
			tell("its BGP session is up")
		}
		switch {
		case old.Route && !now.Route:
			tell("its route is dropped")
		case !old.Route && now.Route:
			tell("its route is there")
		}
	}
	return events
}
