package framework

import (
	"context"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// Run is what the steps of a script work with.
type Run struct {
	// Lab is what the script acts on; nil where a script is tried without a lab. Its
	// type is known to package labaccess alone: what acts on a lab imports that.
	Lab any
	// Topology is the lab's topology. Scripts take the addresses of its members from here: its
	// networks may not be on the documented subnets (Scenario.Within).
	Topology topology.Topology
	// Began is when the variant began. A reused lab has older events.
	Began time.Time
	// TrialsDue returns how many trials (Script.Trials) the component must survive, as far
	// as is known now; zero without trials. While a parallel affected variant is at its
	// trials, it is MaxTrials.
	TrialsDue func() int
	// Meet waits until the parallel variants have called it too, or have ended, so that a fault begins
	// in all of them at once. A fault may call it once. Without parallel variants, and when the fault
	// is injected again, it returns at once.
	Meet func(ctx context.Context) error
	// Snapshot is the newest snapshot that the detectors got; empty before the baseline.
	Snapshot func() snapshot.Snapshot
	// Findings are the newest findings of the detectors.
	Findings func() []detect.Finding
	// Timelines are the probes' timelines so far; none before the baseline.
	Timelines func() []probe.Timeline
	// Evidence stores v, text or a JSON value, with the report.
	Evidence func(name string, v any)
	// Note adds a line to the progress of the run.
	Note func(text string)
}

// Address is the address of a node, a router or a host of the lab, on its first network.
func (r *Run) Address(member string) netip.Addr {
	m, _ := r.Topology.Member(member)
	return m.Links[0].Address
}
