package engine

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Labs makes the labs of scenarios.
type Labs interface {
	// Prepare makes the images of a scenario's variants available.
	Prepare(ctx context.Context, s framework.Scenario, variants []framework.Variant) (Prepared, error)
	// Up brings up the scenario's lab in place of one that an interrupted run has left, or with reuse uses a running
	// one. With an error it may also return the part that came up.
	Up(ctx context.Context, s framework.Scenario, variants []framework.Variant, reuse bool) (Lab, error)
	// Down removes all parts of the scenario's lab.
	Down(ctx context.Context, s framework.Scenario) error
}

// Prepared describes a scenario's images, as report.Report does.
type Prepared struct {
	Digests, Origins map[string]string // by name
	Modules          []report.Module
}

// Lab is a running topology.
type Lab interface {
	// Attach fills in what a script works with: Run.Lab and Run.Cluster.
	Attach(r *framework.Run)
	// Probes finds endpoints, connects to their agents, and declares probes among them. The caller must close them.
	Probes(ctx context.Context, r *framework.Run, ends []framework.Endpoint, probes []probe.Probe) (Probes, error)
	// Open makes a reader of sources, without other variants' nodes. The caller must close it.
	Open(ctx context.Context, sources []snapshot.Source, others []string) (Reader, error)
	// Guests are the nodes with a kernel of their own.
	Guests(ctx context.Context) ([]report.Guest, error)
	// CPUTime is the CPU time that the lab and the machine have used so far.
	CPUTime(ctx context.Context) (CPUTime, error)
	// Logs are the logs of the lab since a time (zero: all), by name, without other variants' nodes.
	Logs(ctx context.Context, since time.Time, others []string) (map[string]string, error)
	// Release leaves the lab running, for another process.
	Release()
	Down(ctx context.Context) error
}

// Probes are probes between endpoints of a lab. *probe.Set implements it.
type Probes interface {
	Start(ctx context.Context) error
	Timelines() []probe.Timeline
	WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error)
	WaitOutage(ctx context.Context, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error)
	Stop(ctx context.Context, names ...string) error
	Close() error
}

// CPUTime is summed over CPUs since a fixed moment in the past.
type CPUTime struct {
	// Lab is the time of the lab's containers, Machine the time of all processes, and All includes idle time.
	Lab, Machine, All time.Duration
}

// Reader takes snapshots. *snapshot.Collector implements it.
type Reader interface {
	// Collect never fails: snapshots mark unavailable sources.
	Collect(ctx context.Context) snapshot.Snapshot
	// Timeout bounds one collection.
	Timeout() time.Duration
	Close() error
}
