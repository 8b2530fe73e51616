package framework

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/client"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// ErrInterrupted says that a run was ended by a signal, after its lab was
// put back or taken down.
var ErrInterrupted = errors.New("interrupted")

// undoWithin bounds what comes after an interruption or the end of a run's
// time: steps undo what they did, and the lab goes down.
const undoWithin = 2 * time.Minute

// Part is a part of the harness that can be switched off, to see that the
// verdict changes.
type Part string

// Parts that can be switched off.
const (
	AblateFault    Part = "fault"    // the fault is not injected
	AblateDetector Part = "detector" // the detectors are not asked
	AblateRemedy   Part = "remedy"   // the remedies are not applied
)

// Parts lists what Options.Ablate takes.
var Parts = []Part{AblateDetector, AblateRemedy, AblateFault}

// Progress is told what a run is doing.
type Progress interface {
	// Step begins a step; the function that it returns ends it.
	Step(scope, name string) (done func(error))
	// Note is a line of its own.
	Note(scope, text string)
}

// silent is the Progress of somebody who reads Ginkgo's own.
type silent struct{}

func (silent) Step(string, string) func(error) { return func(error) {} }
func (silent) Note(string, string)             {}

// Images builds images and hands them to a lab.
type Images interface {
	kindlab.Images
	Build(ctx context.Context, refs []string, progress func(images.Event)) (images.Summary, error)
}

// Options say how scenarios run.
type Options struct {
	Docker *client.Client
	Images Images
	// Upstreams, where there are any, are where the vendors' images come from;
	// without them they are built.
	Upstreams registry.Upstreams
	// Output is the folder for the reports: in it one folder for each scenario,
	// and in that one for each run (report.NewRun).
	Output string
	// Variants restricts the run to the variants of these names; none means
	// all.
	Variants []string
	// Keep leaves the lab running after the run, ready for Reuse.
	Keep bool
	// Reuse takes a lab that is running, where there is one.
	Reuse bool
	// Ablate switches a part off.
	Ablate Part
	// Repeat runs each variant so many times on one lab, for the rate of its
	// verdict; zero means once. More than once leaves lesser forms and remedies
	// out: they take the time of several runs.
	Repeat int
	// Timeout bounds the whole run; zero means one hour.
	Timeout time.Duration
	// DryRun tells Progress every step, and runs none.
	DryRun bool
	// Progress and Log may be nil: Ginkgo tells of the specs in any case.
	Progress Progress
	Log      *slog.Logger
	// Machine is what the report says of this machine.
	Machine any
}

// RunScenarios runs scenarios, one after the other, as one Ginkgo suite. It can be
// called once in a process: Ginkgo holds its specs in global state.
//
// The reports tell what became of the scenarios; the error is for runs that
// could not be judged at all: ErrInterrupted, an image that does not build, a
// lab that does not come up, or does not go down. Reports of what was judged
// until then are returned with it; a scenario whose lab another process holds
// has none.
func RunScenarios(t ginkgo.GinkgoTestingT, scenarios []Scenario, o Options) ([]report.Report, error) {
	for _, s := range scenarios {
		if err := s.Topology.Validate(); err != nil {
			return nil, err
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = silent{}
	}
	var runs []*scenarioRun
	for _, s := range scenarios {
		r := &scenarioRun{scenario: s, options: o}
		r.declare()
		runs = append(runs, r)
	}
	var suite types.Report
	ginkgo.ReportAfterSuite("reports", func(r ginkgo.Report) { suite = r })

	config, reporter := ginkgo.GinkgoConfiguration()
	config.DryRun = o.DryRun
	config.Timeout = time.Hour
	if o.Timeout > 0 {
		config.Timeout = o.Timeout
	}
	config.GracePeriod = undoWithin
	ginkgo.RunSpecs(t, "relapse", config, reporter)

	if o.DryRun {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType == types.NodeTypeIt {
				hierarchy := spec.ContainerHierarchyTexts
				o.Progress.Note(hierarchy[len(hierarchy)-1], spec.LeafNodeText)
			}
		}
		return nil, nil
	}
	// In a container that goes on after failures Ginkgo runs no AfterAll once
	// the suite's time is up, nor after a second interruption.
	ctx, cancel := context.WithTimeout(context.Background(), undoWithin)
	defer cancel()
	var reports []report.Report
	var broken, left []error
	for _, r := range runs {
		r.end(ctx)
		broken = append(broken, r.broken)
		if !r.over {
			continue
		}
		reports = append(reports, r.report)
		left = append(left, r.left)
		if r.dir != "" {
			left = append(left, writeJUnit(suite, r))
		}
	}
	for _, reason := range suite.SpecialSuiteFailureReasons {
		// Steps that were cut short have nothing to tell.
		switch {
		case strings.Contains(reason, "Interrupted by User"):
			broken = []error{ErrInterrupted}
		case strings.Contains(reason, "Suite Timeout Elapsed"):
			broken = []error{fmt.Errorf("the run took longer than %s", config.Timeout)}
		}
	}
	return reports, errors.Join(append(broken, left...)...)
}

// writeJUnit writes a scenario's part of the suite's report.
func writeJUnit(suite types.Report, r *scenarioRun) error {
	suite.SpecReports = slices.DeleteFunc(slices.Clone(suite.SpecReports), func(spec types.SpecReport) bool {
		return len(spec.ContainerHierarchyTexts) == 0 || spec.ContainerHierarchyTexts[0] != r.scenario.Incident.Name
	})
	if err := reporters.GenerateJUnitReport(suite, filepath.Join(r.dir, "junit.xml")); err != nil {
		return fmt.Errorf("writing junit.xml of %q: %w", r.scenario.Incident.Name, err)
	}
	return nil
}
