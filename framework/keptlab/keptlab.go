// Package keptlab runs scripts one after another on one lab, which stays up between two runs.
package keptlab

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/host"
)

// Lab runs scenarios that share a topology. It must not be used concurrently.
type Lab struct {
	Labs    engine.Labs
	Options engine.Options // of every run; Run sets Reuse and Keep
	Timeout time.Duration  // of each run

	up   bool // an earlier run has left its lab for the next one
	used bool // an earlier run had a lab, parts of which may still exist
}

// Run is the result of one run.
type Run struct {
	Report   report.Report
	Reported bool   // Report is set
	Dir      string // the run's folder
	// Broken says why the run could not be judged, and Left which parts of the lab could
	// not be removed.
	Broken, Left error
}

// Prepare builds the images of a scenario's variants.
func (l *Lab) Prepare(ctx context.Context, s framework.Scenario) error {
	_, err := l.Labs.Prepare(ctx, s, s.Variants)
	return err
}

// Run runs a scenario once; the display shows it as title. With keep the lab stays up for
// the next run, unless this run exceeds Timeout or could not restore the lab.
func (l *Lab) Run(ctx context.Context, s framework.Scenario, title string, keep bool) Run {
	o := l.Options
	o.Reuse, o.Keep = l.up, keep
	o.Progress = o.Progress.Scenario(title)
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	e := engine.New(s.ForMemory(host.MemoryGiB()), l.Labs, o)
	e.Run(ctx, engine.UndoWithin)
	r := Run{Dir: e.Dir(), Broken: e.Broken(), Left: e.Left()}
	r.Report, r.Reported = e.Report()
	l.up = o.Keep && r.Broken == nil && ctx.Err() == nil
	l.used = l.used || r.Dir != ""
	return r
}

// Up reports whether the lab is up for the next run.
func (l *Lab) Up() bool { return l.up }

// Down removes what earlier runs have left of the lab.
func (l *Lab) Down(s framework.Scenario) error {
	if !l.used {
		return nil
	}
	l.up, l.used = false, false
	ctx, cancel := context.WithTimeout(context.Background(), engine.UndoWithin)
	defer cancel()
	return l.Labs.Down(ctx, s)
}
