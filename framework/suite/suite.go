// Package suite runs scenarios on kind labs: one after the other for the CLI, and as a Ginkgo suite for go test.
package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/host/subnet"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

type Options struct {
	engine.Options
	Docker *client.Client
	Images *images.Catalogue
	// Upstreams are the registries of the vendors' own images, if the vendors' images run and none are built.
	Upstreams registry.Upstreams
	// Timeout bounds the whole run; zero means one hour.
	Timeout time.Duration
	// Adopted is the lab that somebody else has brought up, to run on; nil: labs are this machine's own.
	Adopted *kindlab.Foreign
	// Labs is how many labs may be up at the same time; zero means one. A lab with guests counts once for each guest
	// (Rooms). With room for two, the variants of a scenario with a second lab run in two labs side by side.
	Labs int
	// DryRun passes every step to Progress, and runs none.
	DryRun bool
}

func (o Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return time.Hour
}

// Run runs scenarios, one after the other, until ctx ends.
//
// The error is why the run could not continue: engine.ErrInterrupted, an image that does not build, or a lab that does
// not come up or go down. Earlier reports are returned with it. A scenario whose lab another process uses has none.
func Run(ctx context.Context, scenarios []framework.Scenario, o Options) ([]report.Report, error) {
	all, err := executions(scenarios, o)
	if err != nil || o.DryRun {
		return nil, err
	}
	late := fmt.Errorf("the run took longer than %s", o.timeout())
	within, cancel := context.WithTimeoutCause(ctx, o.timeout(), late)
	defer cancel()
	for _, e := range all {
		if within.Err() == nil {
			e.Run(within, engine.UndoWithin)
		}
	}
	reports, broken, left := results(all)
	switch { // errors of steps that were cut short say nothing
	case ctx.Err() != nil:
		broken = engine.ErrInterrupted
	case within.Err() != nil:
		broken = late
	}
	return reports, errors.Join(broken, left)
}

// executions plans scenarios. A dry run only passes the steps to Progress.
func executions(scenarios []framework.Scenario, o Options) ([]*engine.Execution, error) {
	wrong := each.Of(scenarios, framework.Scenario.Validate)
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	o.Progress = cmp.Or(o.Progress, engine.Silent)
	var all []*engine.Execution
	for _, s := range scenarios {
		o := o
		o.Foreign = o.Adopted != nil
		o.Progress = o.Progress.Scenario(s.Incident.Name)
		if o.Labs >= 2*Rooms(s) {
			if second, err := s.OnSecondLab(o.Parameters); err == nil && (o.DryRun || isFree(second)) {
				o.Second = new(second.ForMemory(host.MemoryGiB()))
			}
		}
		e := engine.New(s.ForMemory(host.MemoryGiB()), Labs(o), o.Options)
		for _, line := range s.Subnets() {
			o.Progress.Note(report.LabScope, line)
		}
		if e.HasSecondLab() {
			for _, line := range o.Second.Subnets() {
				o.Progress.Note(report.SecondLabScope, line)
			}
		}
		if o.DryRun {
			for _, step := range e.Steps() {
				o.Progress.Note(step.Scope, step.Name)
			}
			continue
		}
		e.Announce()
		all = append(all, e)
	}
	return all, nil
}

func results(all []*engine.Execution) (reports []report.Report, broken, left error) {
	for _, e := range all {
		broken = errors.Join(broken, e.Broken())
		if r, there := e.Report(); there {
			reports = append(reports, r)
			left = errors.Join(left, e.Left())
		}
	}
	return reports, broken, left
}

// Specs runs a scenario as a Ginkgo suite, once in a process: Ginkgo has global state. Results are as in Run.
func Specs(t ginkgo.GinkgoTestingT, s framework.Scenario, o Options) ([]report.Report, error) {
	all, err := executions([]framework.Scenario{s}, o)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		declare(s.Incident.Name, e)
	}
	var suite types.Report
	ginkgo.ReportAfterSuite("reports", func(r ginkgo.Report) { suite = r })
	config, reporter := ginkgo.GinkgoConfiguration()
	config.Timeout = o.timeout()
	config.GracePeriod = engine.UndoWithin
	ginkgo.RunSpecs(t, "relapse", config, reporter)

	// With ContinueOnFailure Ginkgo runs no AfterAll once the suite's time is up, nor after a second interruption.
	ctx, cancel := context.WithTimeout(context.Background(), engine.UndoWithin)
	defer cancel()
	for _, e := range all {
		e.Finish(ctx)
	}
	reports, broken, left := results(all)
	if reasons := suite.SpecialSuiteFailureReasons; len(reasons) > 0 {
		broken = errors.New("the suite ended early: " + strings.Join(reasons, "; "))
	}
	return reports, errors.Join(broken, left)
}

// declare makes a spec of each step. Every spec runs even if an earlier one failed: the engine decides what is to do.
func declare(scenario string, e *engine.Execution) {
	ginkgo.Describe(scenario, ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
		for _, step := range e.Steps() {
			ginkgo.Context(step.Scope, func() {
				ginkgo.It(step.Name, func(ctx ginkgo.SpecContext) {
					err := step.Run(ctx)
					if skipped, ok := errors.AsType[*engine.Skipped](err); ok {
						ginkgo.Skip(skipped.Why)
					} else if err != nil {
						ginkgo.Fail(err.Error())
					}
				})
			})
		}
		// An interrupted suite still runs this. A second interrupt must not stop the removal of the lab.
		ginkgo.AfterAll(func(spec ginkgo.SpecContext) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(spec), engine.UndoWithin)
			defer cancel()
			if e.Finish(ctx); e.Left() != nil {
				ginkgo.Fail(e.Left().Error())
			}
		})
	})
}

// Rooms is how many labs could run in place of a scenario's lab. Each guest has a CPU for itself: beside four guests on
// two CPUs, another lab takes up to twice its time, and a read that it waits for sometimes takes too long.
func Rooms(s framework.Scenario) int {
	return max(1, len(s.Topology.Guests()))
}

// What a lab needs when labs run in parallel. With three labs on two CPUs verdicts have changed.
const (
	labCPUs = 1
	labGiB  = 4
)

// AtOnce is how many labs run in parallel on a machine with these CPUs and this memory, in GiB.
func AtOnce(cpus, gib int) int { return max(1, min(cpus/labCPUs, gib/labGiB)) }

// isFree reports whether no route of this machine overlaps a lab's networks.
func isFree(s framework.Scenario) bool {
	subnets := each.Of(s.Topology.Networks, func(n topology.Network) netip.Prefix { return n.Subnet })
	overlaps, err := subnet.Overlaps(context.Background(), subnets)
	return err == nil && len(overlaps) == 0
}
