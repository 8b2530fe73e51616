package main

import (
	"context"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/host"
)

// oneLab runs a scenario again and again, and keeps the lab in between.
type oneLab struct {
	options suite.Options
	timeout time.Duration // of each run
	up      bool          // the lab of an earlier run is there, for the next one
	made    bool          // a run has had a lab, of which something may be there
}

// run runs the scenario once; title is what the display calls that run. With keep it
// leaves the lab for the next one. That gets a new lab if this one takes too long, or
// if the lab could not be put back.
func (l *oneLab) run(ctx context.Context, s framework.Scenario, title string, keep bool) *engine.Execution {
	o := l.options.Options
	o.Reuse, o.Keep = l.up, keep
	o.Progress = o.Progress.Scenario(title)
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	e := engine.New(s.On(host.MemoryGiB()), suite.Labs(l.options), o)
	e.Run(ctx, engine.UndoWithin)
	l.up = o.Keep && e.Broken() == nil && ctx.Err() == nil
	l.made = l.made || e.Dir() != ""
	return e
}

// down takes the lab down that a run has left.
func (l *oneLab) down(s framework.Scenario) error {
	if !l.made {
		return nil
	}
	l.up, l.made = false, false
	ctx, cancel := context.WithTimeout(context.Background(), engine.UndoWithin)
	defer cancel()
	return suite.Labs(l.options).Down(ctx, s)
}
