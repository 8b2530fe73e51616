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

// State is the state of kube-router on one node, by a snapshot's pods with their images and
// the routers' neighbours and paths.
type State struct {
	// Pod is the pod's UID; empty if there is none.
	Pod string
	// Digest is the digest of the image that runs; empty if it is not known yet.
	Digest string
	// Trouble says why the container does not run; empty if it does.
	Trouble string
	// Session and Route report whether a router has a session with the node, and a path from it.
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

// Event is a change on one node while kube-router was rolled out.
type Event struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	What string    `json:"what"`
}

const (
	// pollEvery is half the time between two snapshots of the detectors.
	pollEvery = 100 * time.Millisecond
	// lastPollWithin bounds the wait for a snapshot of the final state.
	lastPollWithin = time.Second
)

// Watch calls do, which changes kube-router, and reports what happens on each node
// meanwhile: it notes each event when it is seen, and returns all of them in order. Latest
// returns the newest snapshot. The error is do's error.
func Watch(nodes []Node, latest func() snapshot.Snapshot, note func(string), do func() error) ([]Event, error) {
	last, events := latest(), []Event{}
	poll := func() {
		now := latest()
		// A source that was not read has not changed.
		if !now.Time.After(last.Time) || len(now.Unavailable()) > 0 {
			return
		}
		for _, e := range changes(nodes, last, now) {
			events = append(events, e)
			note(e.Node + ": " + e.What)
		}
		last = now
	}
	ended := make(chan time.Time, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		var end time.Time
		for {
			select {
			case end = <-ended:
			case <-time.After(pollEvery):
			}
			poll()
			if !end.IsZero() && (last.Time.After(end) || time.Since(end) > lastPollWithin) {
				return
			}
		}
	})
	err := do()
	ended <- time.Now()
	watching.Wait()
	return events, err
}

// changes lists what changed for the nodes, in their order.
func changes(nodes []Node, before, after snapshot.Snapshot) []Event {
	var events []Event
	for _, node := range nodes {
		old, now := StateOf(before, node), StateOf(after, node)
		add := func(format string, args ...any) {
			events = append(events, Event{after.Time, node.Name, fmt.Sprintf(format, args...)})
		}
		if old.Pod != now.Pod && now.Pod == "" {
			add("its kube-router pod was deleted")
		} else if old.Pod != now.Pod {
			add("a new kube-router pod")
		}
		if now.Digest != "" && (old.Digest != now.Digest || old.Pod != now.Pod) {
			add("kube-router runs %s", now.Digest)
		}
		if now.Trouble != "" && now.Trouble != old.Trouble {
			add("kube-router: %s", now.Trouble)
		}
		if old.Session != now.Session {
			add("its BGP session is %s", map[bool]string{false: "lost", true: "up"}[now.Session])
		}
		if old.Route != now.Route {
			add("its route is %s", map[bool]string{false: "dropped", true: "installed"}[now.Route])
		}
	}
	return events
}
