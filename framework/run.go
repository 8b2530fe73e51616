package framework

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Run is what the steps of a script work with.
type Run struct {
	// Lab is the topology that runs, and Cluster its first cluster. Both are nil
	// where a script is tried without a lab.
	Lab     *kindlab.Lab
	Cluster *kindlab.Cluster
	// Began is when the variant began. A lab that is reused has done things
	// before.
	Began time.Time
	// Rounds tells how many rounds of a race (Script.Race) the component is to
	// stand, as far as is known by now; zero where there is none. While an affected
	// variant is at its race beside this one, it is the most that there can be.
	TrialsDue func() int
	// Meet waits until the variants beside this one are at the same point of their
	// faults, or have ended: for a fault that prepares something in each of them,
	// and then begins for all. It may be called once in a fault, and waits for nobody
	// when the fault comes again, or where variants run one after the other.
	Meet func(ctx context.Context) error
	// Snapshot is the newest one that the detectors saw. It is empty until
	// the baseline.
	Snapshot func() snapshot.Snapshot
	// Findings are the detectors' newest ones.
	Findings func() []detect.Finding
	// Timelines are the probes' so far. There are none before the baseline.
	Timelines func() []probe.Timeline
	// Evidence keeps v, text or anything that JSON can hold, with the report.
	Evidence func(name string, v any)
	// Note tells the reader of the run's progress what is going on.
	Note func(text string)
}
