package engine

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Labs makes what scenarios run on.
type Labs interface {
	// Prepare makes the images of a scenario's variants available, and tells the
	// digests of those that are built, by their names, and of which modules.
	Prepare(ctx context.Context, s framework.Scenario, variants []framework.Variant) (digests map[string]string, modules []report.Module, err error)
	// Up brings up the scenario's lab, in place of one that an interrupted run
	// has left; with reuse it takes the one that runs, where there is one. After
	// an error there may be a lab as well: as much of it as came up.
	Up(ctx context.Context, s framework.Scenario, variants []framework.Variant, reuse bool) (Lab, error)
	// Down removes what there is of the scenario's lab, whoever made it.
	Down(ctx context.Context, s framework.Scenario) error
}

// Lab is a topology that runs, as far as the engine knows it.
type Lab interface {
	// Attach fills in what a script works with: Run.Lab and Run.Cluster.
	Attach(r *framework.Run)
	// Dial finds ends, and connects to their agents. The agents that it returns
	// are the caller's to close, after an error as well.
	Dial(ctx context.Context, r *framework.Run, ends []framework.Endpoint) ([]probe.End, error)
	// Open makes a reader of these sources, which the caller closes. With an
	// error there is none. It looks at no node of others.
	Open(ctx context.Context, sources []snapshot.Source, others []string) (Reader, error)
	// Guests are the nodes with a kernel of their own.
	Guests(ctx context.Context) ([]report.Guest, error)
	// CPUTime is what the lab and the machine have used so far.
	CPUTime(ctx context.Context) (CPUTime, error)
	// Logs are what everything in the lab has said since a time, by name, but for the
	// nodes of others. The zero time is for all.
	Logs(ctx context.Context, since time.Time, others []string) (map[string]string, error)
	// Release leaves the lab running, for whoever comes next.
	Release()
	// Down removes the lab.
	Down(ctx context.Context) error
}

// CPUTime is summed over CPUs, from some moment in the past on.
type CPUTime struct {
	// Lab is what the containers of the lab have used, Machine what was used in
	// all, and All what there was.
	Lab, Machine, All time.Duration
}

// Reader takes snapshots of what it was opened for. A *snapshot.Collector is
// one.
type Reader interface {
	// Collect never fails: what could not be read is marked so in the snapshot.
	Collect(ctx context.Context) snapshot.Snapshot
	// Timeout bounds one collection.
	Timeout() time.Duration
	Close() error
}
