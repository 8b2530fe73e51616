// Package suite runs scenarios on kind labs, as one Ginkgo suite: the same run
// for the CLI and for go test. What a scenario comes to is decided in package
// engine.
package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/client"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/host"
)

// Options say how scenarios run.
type Options struct {
	engine.Options
	Docker *client.Client
	Images Images
	// Timeout bounds the whole run; zero means one hour.
	Timeout time.Duration
	// DryRun tells Progress every step, and runs none.
	DryRun bool
}

// Run runs scenarios, one after the other, as one Ginkgo suite. It can be
// called once in a process: Ginkgo holds its specs in global state.
//
// The reports tell what became of the scenarios; the error is for runs that
// could not be judged at all: engine.ErrInterrupted, an image that does not
// build, a lab that does not come up, or does not go down. Reports of what was
// judged until then are returned with it; a scenario whose lab another process
// holds has none.
func Run(t ginkgo.GinkgoTestingT, scenarios []framework.Scenario, o Options) ([]report.Report, error) {
	var wrong []error
	for _, s := range scenarios {
		wrong = append(wrong, s.Validate())
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	var all []*engine.Execution
	if o.Progress == nil {
		o.Progress = engine.Silent
	}
	for _, s := range scenarios {
		o := o
		o.Progress = o.Progress.Scenario(s.Incident.Name)
		e := engine.New(s.On(host.MemoryGiB()), newLabs(o), o.Options)
		if o.DryRun {
			for _, step := range e.Steps() {
				o.Progress.Note(step.Scope, step.Name)
			}
			continue
		}
		o.Progress.Plan(e.Steps())
		declare(s.Incident.Name, e)
		all = append(all, e)
	}
	if o.DryRun {
		return nil, nil
	}
	var suite types.Report
	ginkgo.ReportAfterSuite("reports", func(r ginkgo.Report) { suite = r })

	config, reporter := ginkgo.GinkgoConfiguration()
	config.Timeout = time.Hour
	if o.Timeout > 0 {
		config.Timeout = o.Timeout
	}
	config.GracePeriod = engine.UndoWithin
	ginkgo.RunSpecs(t, "relapse", config, reporter)

	// In a container that goes on after failures Ginkgo runs no AfterAll once
	// the suite's time is up, nor after a second interruption.
	ctx, cancel := context.WithTimeout(context.Background(), engine.UndoWithin)
	defer cancel()
	var reports []report.Report
	var broken, left []error
	for _, e := range all {
		e.Finish(ctx)
		broken = append(broken, e.Broken())
		r, there := e.Report()
		if !there {
			continue
		}
		reports = append(reports, r)
		left = append(left, e.Left())
	}
	for _, reason := range suite.SpecialSuiteFailureReasons {
		// Steps that were cut short have nothing to tell.
		switch {
		case strings.Contains(reason, "Interrupted by User"):
			broken = []error{engine.ErrInterrupted}
		case strings.Contains(reason, "Suite Timeout Elapsed"):
			broken = []error{fmt.Errorf("the run took longer than %s", config.Timeout)}
		}
	}
	return reports, errors.Join(append(broken, left...)...)
}

// declare makes a spec of each step. Every spec runs even if an earlier one
// failed: what may still run after a failure is for the engine to know, and
// the lab is put back in any case.
func declare(scenario string, e *engine.Execution) {
	ginkgo.Describe(scenario, ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
		for _, step := range e.Steps() {
			ginkgo.Context(step.Scope, func() {
				ginkgo.It(step.Name, func(ctx ginkgo.SpecContext) {
					err := step.Run(ctx)
					var skipped *engine.Skipped
					switch {
					case errors.As(err, &skipped):
						ginkgo.Skip(skipped.Why)
					case err != nil:
						ginkgo.Fail(err.Error())
					}
				})
			})
		}
		// An interrupted suite runs no further spec, but it runs this. An interrupt that
		// comes meanwhile, as when Ctrl-C has ended a child of ours and Ginkgo hears of it
		// later, must not cut short what takes the lab down.
		ginkgo.AfterAll(func(spec ginkgo.SpecContext) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(spec), engine.UndoWithin)
			defer cancel()
			if e.Finish(ctx); e.Left() != nil {
				ginkgo.Fail(e.Left().Error())
			}
		})
	})
}
