// Package detect finds out, from what the layers of a network say, why users
// are hurt or are about to be. A detector is a pure function of snapshots: it
// looks at no traffic, keeps no state and can change nothing, so it runs the
// same on a lab, on a stored run, and on a live cluster.
package detect

import (
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Detector looks for one class of fault.
type Detector interface {
	// Name is the detector's name in reports, such as "route-ownership".
	Name() string
	// Reads are the sources that the snapshots must hold. Detect looks at no
	// others.
	Reads() []snapshot.Source
	// Detect returns what is wrong or settling at the moment of the last
	// snapshot, in a stable order. History is in order of time and tells how
	// long things have been so. One snapshot is enough; with more, what has
	// only begun to change is given time to settle, for which History should
	// reach back. What is given time is found all the same, in state Settling:
	// no finding means that nothing is on its way. A source that was not read
	// leads to no finding about it.
	Detect(history []snapshot.Snapshot) []Finding
}

// Look asks detectors about the last of some snapshots, and returns what they
// find in their order. Each detector is given what it says that it reads, and
// no more: so it finds the same wherever the snapshots come from.
func Look(detectors []Detector, history []snapshot.Snapshot) []Finding {
	var findings []Finding
	for _, d := range detectors {
		reads, seen := d.Reads(), make([]snapshot.Snapshot, len(history))
		for i, s := range history {
			seen[i] = s.Only(reads...)
		}
		findings = append(findings, d.Detect(seen)...)
	}
	return findings
}

// History is how far back the snapshots that a Detector is given should
// reach. Older ones do no harm.
const History = 30 * time.Second

// flowHistory is how far back flows and sockets, of which there are thousands, need
// reach: the newest snapshot that is so much older than the last one is the oldest
// of which a detector looks at them.
const flowHistory = 2 * time.Second

// Forget takes from a history, in place, what no detector looks at any more: the flows
// and sockets of older snapshots.
func Forget(history []snapshot.Snapshot) {
	for i := 1; i < len(history); i++ {
		if history[len(history)-1].Time.Sub(history[i].Time) >= flowHistory {
			history[i-1] = history[i-1].WithoutFlows()
		}
	}
}

// State is whether a finding hurts already, or may be about to.
type State string

// States of a finding.
const (
	// Hint: nothing is wrong, and somebody is going to want to know. It is no
	// warning.
	Hint State = "hint"
	// Latent: nothing is broken yet.
	Latent State = "latent"
	// Settling: what the layers say differs, and the detector still gives it time
	// to pass by itself. It becomes active, or goes; what would become latent is
	// not settling. But for State and Says the finding is the active one. Silence
	// is not quiet while something is settling.
	Settling State = "settling"
	// Active: traffic is being lost, if there is any.
	Active State = "active"
)

// Finding is one thing that is wrong, or settling: the object at fault, what one
// layer says of it, and what the other layer says.
type Finding struct {
	Detector string `json:"detector"`
	// Kind is what is wrong, in one word of the detector's.
	Kind  string `json:"kind"`
	State State  `json:"state"` // hint, latent, settling or active
	// Object is what the layers disagree about.
	Object Object `json:"object"`
	// Owner is the node that Object belongs to, empty if there is none.
	Owner string `json:"owner,omitempty"`
	// Announcer is the node that claims Object: its name, or its address if the
	// name is not known. Empty if no node does.
	Announcer string `json:"announcer,omitempty"`
	// Routers are those on which the fault is seen.
	Routers []string `json:"routers,omitempty"`
	// Pods are the pods that it concerns, as namespace/name.
	Pods []string `json:"pods,omitempty"`
	// Says is one sentence for the engineer on call.
	Says string `json:"says"`
}

// ID identifies a finding: two findings with the same ID are the same one, seen
// twice. The pods and the sentence may change from snapshot to snapshot, and are no
// part of it.
type ID struct {
	Detector, Kind   string
	State            State
	Object           Object
	Owner, Announcer string
	Routers          string // sorted, separated by ", "
}

// String returns the fields that are set, in one line.
func (id ID) String() string {
	text := id.Detector + ":"
	for _, part := range []struct{ what, value string }{
		{" ", string(id.State)}, {" ", id.Kind}, {" ", id.Object.String()},
		{" of ", id.Owner}, {" announced by ", id.Announcer}, {" on ", id.Routers},
	} {
		if part.value != "" {
			text += part.what + part.value
		}
	}
	return text
}

// ID returns the identity of the finding.
func (f Finding) ID() ID {
	return ID{
		Detector: f.Detector, Kind: f.Kind, State: f.State, Object: f.Object, Owner: f.Owner, Announcer: f.Announcer,
		Routers: strings.Join(slices.Sorted(slices.Values(f.Routers)), ", "),
	}
}
