// Package detect finds causes of packet loss, present or imminent, by comparing the layers of
// a network. A detector is a pure function of snapshots: it sees no traffic, keeps no state
// and changes nothing, so it works the same on a lab, a stored run and a live cluster.
package detect

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Detector looks for one class of fault.
type Detector interface {
	// Name is the detector's name in reports, such as "route-ownership".
	Name() string
	// Reads are the sources that Detect reads from the snapshots.
	Reads() []snapshot.Source
	// Detect returns the findings at the moment of the last snapshot, in a stable order, without
	// the detector's name: Run adds it. history is in order of time, has one snapshot at least, and
	// should span History; x has what is made of the snapshots for all detectors. With several
	// snapshots, a difference that has only begun is Pending at first. No finding means that no
	// difference is pending either. An unavailable source leads to no finding.
	Detect(history []snapshot.Snapshot, x *Index) []Finding
}

// Run returns the findings of detectors at the last of some snapshots, in their order. Each
// detector gets only the sources that it reads, so that its findings do not depend on what
// else the snapshots have.
func Run(detectors []Detector, history []snapshot.Snapshot) []Finding {
	return NewIndex(history).Run(detectors)
}

// History is the time that the snapshots for a Detector should span. More is harmless.
const History = 30 * time.Second

// flowHistory is the time that flows and sockets must span. There may be thousands of them: of the snapshots that are
// at least this much older than the last one, only the newest keeps them.
const flowHistory = 2 * time.Second

// Forget removes, in place, the flows and sockets of older snapshots, which no detector
// reads any more.
func Forget(history []snapshot.Snapshot) {
	for i := 1; i < len(history); i++ {
		if history[len(history)-1].Time.Sub(history[i].Time) >= flowHistory {
			history[i-1] = history[i-1].WithoutFlows()
		}
	}
}

// State is the severity of a finding.
type State string

const (
	// Hint: information for the operator. Nothing is wrong.
	Hint State = "hint"
	// Latent: no packets are lost yet.
	Latent State = "latent"
	// Pending: the layers differ, and the difference may still disappear by itself. It
	// becomes active or disappears; a difference that would become latent is never pending.
	// Apart from State and Says the finding equals the active one. While a finding is
	// pending, there is no time without active findings.
	Pending State = "settling"
	// Active: traffic is being lost, if there is any.
	Active State = "active"
)

// Finding is one difference between layers: the object at fault, what one layer says of it,
// and what the other layer says.
type Finding struct {
	Detector string `json:"detector"`
	// Kind is what is wrong, as a constant of the detector.
	Kind  string `json:"kind"`
	State State  `json:"state"` // hint, latent, settling or active
	// Object is the object that the layers disagree about.
	Object Object `json:"object"`
	// Owner is the node that Object belongs to, empty if there is none.
	Owner string `json:"owner,omitempty"`
	// Announcer is the node that claims Object: its name, or its address if the name is
	// unknown. Empty if no node does.
	Announcer string `json:"announcer,omitempty"`
	// Routers are the routers that show the fault.
	Routers []string `json:"routers,omitempty"`
	// Pods are the affected pods, as namespace/name.
	Pods []string `json:"pods,omitempty"`
	// Says is one sentence for the engineer on call.
	Says string `json:"says"`
}

// ID identifies a finding across snapshots. Pods and Says are no part of it, because they may
// change from snapshot to snapshot.
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

// Concerns reports whether a statement is about the object of a finding, or is a rule of the owner that names the
// object. If the object is a program, a statement about its node counts as well.
func (f Finding) Concerns(st snapshot.Statement) bool {
	object := f.Object.String()
	_, prefix := f.Object.Prefix()
	switch {
	case st.Object == object:
		return true
	case prefix:
		return st.Rule && st.Object == f.Owner && strings.Contains(st.Says, object)
	}
	return st.Object == f.Announcer && !st.Rule && !strings.Contains(object, "/") // a container has the node of its pod
}

// Object is a prefix, or the name of something, such as a node or a container of a workload. The zero Object is none.
type Object string

// Prefix is an object that is a prefix: no other object has such a name. An invalid prefix is no object.
func Prefix(p netip.Prefix) Object {
	if !p.IsValid() {
		return ""
	}
	return Object(p.String())
}

// Named is an object that has a name.
func Named(name string) Object { return Object(name) }

// Prefix returns the prefix that the object is, if it is one.
func (o Object) Prefix() (p netip.Prefix, ok bool) {
	p, err := netip.ParsePrefix(string(o))
	return p, err == nil
}

func (o Object) String() string { return string(o) }
