package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/await"
)

// ErrInterrupted says that a signal ended the run, and that its lab was restored or taken down.
var ErrInterrupted = errors.New("interrupted")

// UndoWithin bounds the undo and the removal of the lab after an interrupt or the end of a run's time.
const UndoWithin = 2 * time.Minute

// Progress shows the progress of runs. Several goroutines call it.
type Progress interface {
	Scenario(name string) Progress
	// Plan passes the steps of the run, in order, before the first begins.
	Plan(steps []Step)
	// Step begins a step of a scope; done ends it. An unplanned step is part of the current planned step.
	Step(scope, name string) (done func(error))
	// Over ends a planned step, also one that did not begin: err is nil, a *Skipped, or the failure.
	Over(scope, name string, err error)
	// Waits passes the progress of a wait of a scope.
	Waits(scope string, s await.Sight)
	// Found passes findings that no earlier poll had; at least one.
	Found(scope string, findings []detect.Finding)
	// Loses passes the probes that lose packets, after each change; empty if no probe loses packets any more.
	Loses(scope string, probes []string)
	Note(scope, text string)
}

// Silent is a Progress without output.
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

func watched(ctx context.Context, p Progress, scope string) context.Context {
	return await.Watch(ctx, func(s await.Sight) { p.Waits(scope, s) })
}

// reported passes the end of a planned step, and its waits, to Progress.
func (e *Execution) reported(scope, name string, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := do(watched(ctx, e.options.Progress, scope))
		e.options.Progress.Over(scope, name, err)
		return err
	}
}

type Options struct {
	// Output is the folder of the reports: one folder for each scenario, with one for each run in it (report.NewRun).
	Output string
	// Variants are the names of the variants that run; empty means all.
	Variants []string
	// Keep leaves the lab running after the run, for Reuse.
	Keep bool
	// Reuse uses a running lab if there is one.
	Reuse bool
	// Foreign is set if the lab is adopted: it is restored, not taken down.
	Foreign bool
	// Second is the same scenario with the name and the networks of a second lab, which can be up at the same time.
	// Variants without nodes of their own then run in two labs side by side. Nil: all variants run in one lab.
	Second *framework.Scenario
	// Ablate, Repeat and Wait are as in verdict.Options.
	Ablate verdict.Part
	Repeat int
	Wait   time.Duration
	// Parameters are the scenario's, and Versions are the chosen versions of components. Both are only recorded.
	Parameters, Versions map[string]string
	// Progress and Log may be nil.
	Progress Progress
	Log      *slog.Logger
	// Command returns the command that repeats the run, for the report. Nil: the scenario's name only.
	Command func(framework.Scenario) string
	// Machine and Relapse describe this machine and this program in the report.
	Machine any
	Relapse string
}

func (o Options) cases() verdict.Options {
	return verdict.Options{Ablate: o.Ablate, Repeat: o.Repeat, Wait: o.Wait}
}

func (o Options) withDefaults() Options {
	o.Log, o.Progress = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(o.Progress, Silent)
	if o.Command == nil {
		o.Command = func(s framework.Scenario) string { return "relapse run " + s.Incident.Name }
	}
	return o
}
