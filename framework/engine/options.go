package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// ErrInterrupted says that a run was ended by a signal, after its lab was
// put back or taken down.
var ErrInterrupted = errors.New("interrupted")

// UndoWithin bounds what comes after an interruption or the end of a run's
// time: steps undo what they did, and the lab goes down.
const UndoWithin = 2 * time.Minute

// Part is a part of the harness that can be switched off: see package verdict.
type Part = verdict.Part

// Parts of a run.
const (
	AblateFault    = verdict.AblateFault
	AblateDetector = verdict.AblateDetector
	AblateRemedy   = verdict.AblateRemedy
	AblateAll      = verdict.AblateAll
)

// Parts lists what Options.Ablate takes.
var Parts = verdict.Parts

// Progress is told what runs are doing, from several goroutines.
type Progress interface {
	// Scenario returns who is to be told of a run of that scenario.
	Scenario(name string) Progress
	// Plan tells the steps of the run, in their order, before the first begins.
	Plan(steps []Step)
	// Step begins a step of a scope; the function that it returns ends it. One that
	// was not planned is a part of the planned one that is under way there.
	Step(scope, name string) (done func(error))
	// Over tells that a planned step is over, whether it was begun or not: without
	// an error, with a *Skipped, or with what was wrong.
	Over(scope, name string, err error)
	// Waits tells how far a wait of a scope has come.
	Waits(scope string, s await.Sight)
	// Found tells what the detectors have found in one look and in none before it,
	// one finding at least.
	Found(scope string, findings []detect.Finding)
	// Loses names the probes of a scope that lose packets now, when they are others
	// than before. None: all that run have their answers again.
	Loses(scope string, probes []string)
	// Note is a line of its own.
	Note(scope, text string)
}

// Silent is the Progress of somebody who does not watch.
var Silent Progress = silent{}

type silent struct{}

func (s silent) Scenario(string) Progress      { return s }
func (silent) Plan([]Step)                     {}
func (silent) Step(string, string) func(error) { return func(error) {} }
func (silent) Over(string, string, error)      {}
func (silent) Waits(string, await.Sight)       {}
func (silent) Found(string, []detect.Finding)  {}
func (silent) Loses(string, []string)          {}
func (silent) Note(string, string)             {}

// watched is a context whose waits are those of a scope.
func watched(ctx context.Context, p Progress, scope string) context.Context {
	return await.Watch(ctx, func(s await.Sight) { p.Waits(scope, s) })
}

// told tells progress what becomes of a planned step, and of its waits.
func (e *Execution) reported(scope, name string, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := do(watched(ctx, e.options.Progress, scope))
		e.options.Progress.Over(scope, name, err)
		return err
	}
}

// Options say how a scenario runs.
type Options struct {
	// Output is the folder for the reports: in it one folder for each scenario,
	// and in that one for each run (report.NewRun).
	Output string
	// Variants restricts the run to the variants of these names; none means
	// all.
	Variants []string
	// Upstreams, where there are any, are where the vendors' images come from;
	// without them they are built.
	Upstreams registry.Upstreams
	// Keep leaves the lab running after the run, ready for Reuse.
	Keep bool
	// Reuse takes a lab that is running, where there is one.
	Reuse bool
	// Ablate switches a part off, or all of them in turn. It excludes Repeat.
	Ablate Part
	// Repeat runs each variant so many times on one lab, for the rate of its
	// verdict; zero means once. More than once is Brief.
	Repeat int
	// Brief leaves lesser forms and remedies out: they take the time of several runs.
	Brief bool
	// Wait, if more than zero, is for how long an affected variant is left alone
	// after the fault, before any remedy, to see that it does not heal by itself.
	// It excludes Repeat, which leaves remedies out.
	Wait time.Duration
	// Parameters are those that the scenario was given, by name, and Versions those of
	// components that it was given to run on; both for the record alone.
	Parameters, Versions map[string]string
	// Progress and Log may be nil.
	Progress Progress
	Log      *slog.Logger
	// Command is what runs a scenario the same way again, for the report. Nil: the
	// scenario's name alone.
	Command func(framework.Scenario) string
	// Machine is what the report says of this machine, and Relapse of this program.
	Machine any
	Relapse string
}

// cases are those of the options that say what a variant's runs do.
func (o Options) cases() verdict.Options {
	return verdict.Options{Ablate: o.Ablate, Repeat: o.Repeat, Brief: o.Brief, Wait: o.Wait}
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = Silent
	}
	if o.Command == nil {
		o.Command = func(s framework.Scenario) string { return "relapse run " + s.Incident.Name }
	}
	return o
}
