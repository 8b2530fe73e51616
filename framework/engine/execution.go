package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Execution is one scenario of a run: its lab, and its variants on it, one after
// the other or, where they have nodes of their own, side by side.
type Execution struct {
	scenario framework.Scenario
	options  Options
	labs     Labs
	dir      string // of the run; empty until openFolder

	lab       Lab
	steps     []Step
	variants  []*variantRun
	began     time.Time
	over      bool // Finish has run
	announced sync.Once
	// used is what was used before the lab was up.
	cpuBefore CPUTime
	// busy holds a value while a step or Finish is at work. A runner may give a
	// step up, as Ginkgo does at a second interrupt, and call Finish while the step
	// still makes containers.
	busy   chan struct{}
	report report.Report
	// lanes are the variants that run side by side; nil where they do not.
	parallel *parallel
	// mu guards what several variants look at while they run side by side: broken,
	// how their races go, and what they have told so far.
	mu    sync.Mutex
	soFar progressSoFar
	// writing keeps two variants from writing the report at once.
	writing sync.Mutex
	// broken is why nothing could be judged at all, and lost whether that is because
	// what was seen cannot be stored.
	broken    error
	notStored bool
	// left is why the end did not go well: something of the lab may be left,
	// or no report was written.
	left error
}

// Step is a part of an execution that is told and judged by itself.
type Step struct {
	// Scope is what the step belongs to: a variant's name, or "lab".
	Scope string
	// ID identifies the step in its scope; it is empty for those of the lab.
	ID   framework.StepID
	Name string
	// Run does it. The error is a *Skipped where there is nothing to be done.
	Run func(ctx context.Context) error
}

// labScope is the scope of steps that are no variant's, and labDown the last of them.
const (
	labScope = report.LabScope
	labDown  = "lab is down"
)

// Skipped says why a step had nothing to do.
type Skipped struct{ Why string }

func (s *Skipped) Error() string { return s.Why }

// New plans the execution of a scenario. Nothing runs yet.
func New(s framework.Scenario, labs Labs, o Options) *Execution {
	e := newExecution(s, labs, o)
	e.labStep("images are there", e.prepare)
	e.labStep("lab is up", e.bringUp)
	var chosen []framework.Variant
	for _, v := range s.Variants {
		if len(o.Variants) > 0 && !slices.Contains(o.Variants, v.Name) {
			continue
		}
		if runnable, why := v.Runnable(o.Upstreams); !runnable {
			e.report.NotRun = append(e.report.NotRun, report.NotRun{Name: v.Name, Reason: why})
			continue
		}
		chosen = append(chosen, v)
	}
	if len(chosen) > 1 && len(chosen[0].Nodes) > 0 {
		e.parallel = newParallel()
	}
	e.planVariants(chosen)
	e.labStep(e.lastStepName(), e.releaseLab)
	return e
}

// newExecution is an execution without any step.
func newExecution(s framework.Scenario, labs Labs, o Options) *Execution {
	e := &Execution{scenario: s, options: o.withDefaults(), labs: labs, busy: make(chan struct{}, 1)}
	e.report = report.Report{
		Schema: report.Schema, Scenario: s.Incident.Name, Verdict: string(framework.Inconclusive),
		Ablated: string(o.Ablate), Machine: o.Machine, Relapse: o.Relapse, Variants: []report.Variant{},
		Incident: incidentOf(s.Incident), Command: e.options.Command(s), Owner: string(s.Owner),
	}
	return e
}

// planVariants plans the steps of all variants that run.
func (e *Execution) planVariants(chosen []framework.Variant) {
	for _, v := range chosen {
		e.planVariant(v)
	}
	if e.options.Ablate == "" {
		var roles []framework.Role
		for _, v := range e.chosen() {
			roles = append(roles, v.Role)
		}
		e.report.Half = framework.Half(roles...)
	}
	e.report.Topology = report.TopologyOf(e.scenario.TopologyFor(e.chosen()))
}

// planVariant plans the runs of one variant.
func (e *Execution) planVariant(v framework.Variant) {
	var l *parallelRun
	if e.parallel != nil {
		l = e.parallel.add()
	}
	for _, c := range verdict.Cases(v, e.options.cases()) {
		run := newVariantRun(e, c)
		run.parallel = l
		e.variants = append(e.variants, run)
		run.plan()
	}
}

// Steps are those of the execution, in the order in which they are to run.
func (e *Execution) Steps() []Step { return e.steps }

// Dir is the folder of the run; empty where nothing was written.
func (e *Execution) Dir() string { return e.dir }

// Report returns what the execution came to, once Finish has run. There is no
// report, and the second result is false, for a scenario that has not begun or
// whose lab another process holds.
func (e *Execution) Report() (r report.Report, there bool) {
	if !e.over { // a step that was given up may still write it
		return report.Report{}, false
	}
	return e.report, true
}

// Broken is why nothing could be judged: an image that does not build, a lab
// that does not come up. Nil if all could.
func (e *Execution) Broken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken
}

// breaks notes that nothing more can be judged, if there is an error.
func (e *Execution) setBroken(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil {
		e.broken = err
	}
}

// loses notes that something of the run cannot be stored, as on a full disk: nobody
// could see what it has come to, and so it ends.
func (e *Execution) setNotStored(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil && err != nil {
		e.broken, e.notStored = fmt.Errorf("the run could not be stored: %w", err), true
	}
}

// now is the time on the clock that the machine had when the run began: one that is
// set in mid-run must not tear the run's times apart.
func (e *Execution) now() time.Time { return e.began.Add(time.Since(e.began)) }

// Left is why the end did not go well: something of the lab may be left, or no
// report was written. Nil if all is well.
func (e *Execution) Left() error { return e.left }

// Announce tells Progress the steps, once.
func (e *Execution) Announce() {
	e.announced.Do(func() { e.options.Progress.Plan(e.steps) })
}

// Run runs every step and finishes. It stops between two steps when ctx ends.
// Finish has the time undo for what it does, whether ctx has ended or not.
func (e *Execution) Run(ctx context.Context, undo time.Duration) {
	e.Announce()
	for _, step := range e.steps {
		if ctx.Err() != nil {
			break
		}
		_ = step.Run(ctx) // the execution knows what became of it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	e.Finish(ctx)
}

// add plans a step.
func (e *Execution) add(s Step, do func(context.Context) error) {
	s.Run = func(ctx context.Context) (err error) {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		defer func() {
			if p := recover(); p != nil { // the lab is to go all the same
				err = &history.PanicError{Value: p}
				e.options.Log.Error("a step panicked", "step", s.Name, "panic", p, "stack", string(debug.Stack()))
				e.setBroken(err)
			}
			<-e.busy
		}()
		return do(ctx)
	}
	e.steps = append(e.steps, s)
}

// occupy waits until no step and no Finish is at work. The caller takes the value
// out of busy again, if there is no error.
func (e *Execution) acquire(ctx context.Context) error {
	select {
	case e.busy <- struct{}{}:
		return nil
	default: // an ended ctx is for the step to judge
	}
	select {
	case e.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a step that was given up: %w", ctx.Err())
	}
}

// labStep plans a step without which nothing that follows can run.
func (e *Execution) labStep(name string, do func(context.Context) error) {
	const scope = labScope
	e.add(Step{Scope: scope, Name: name}, e.reported(scope, name, func(ctx context.Context) error {
		if e.Broken() != nil {
			return &Skipped{"an earlier step failed"}
		}
		e.begin()
		// From the first step on: a run that is killed while its lab comes up leaves a
		// report as well.
		if err := e.openFolder(); err != nil {
			e.setBroken(err)
			return err
		}
		done := e.beginStep(scope, framework.StepID{}, name)
		err := do(ctx)
		done(err)
		e.setBroken(err)
		return err
	}))
}

func (e *Execution) begin() {
	if e.began.IsZero() {
		e.began = time.Now()
		e.report.Started = e.began
	}
}

// openFolder makes the run's folder, unless it is there.
func (e *Execution) openFolder() error {
	if e.dir != "" {
		return nil
	}
	dir, err := report.NewRun(e.options.Output, e.scenario.Incident.Name, e.began)
	if err != nil {
		return err
	}
	e.dir, e.report.Run = dir, filepath.Base(dir)
	for _, v := range e.variants {
		v.evidence.Dir = filepath.Join(dir, v.c.Evidence)
	}
	return nil
}

// leaveNoFolder takes the run's folder away.
func (e *Execution) removeFolder() error {
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("removing the folder of a run that has not begun: %w", err)
	}
	e.dir = ""
	return nil
}

// chosen are the variants that run, each once.
func (e *Execution) chosen() []framework.Variant {
	var chosen []framework.Variant
	for i, v := range e.variants {
		if i == 0 || v.c.Variant.Name != e.variants[i-1].c.Variant.Name {
			chosen = append(chosen, v.c.Variant)
		}
	}
	return chosen
}

func (e *Execution) prepare(ctx context.Context) error {
	began := time.Now()
	defer func() { e.report.Timings.Images = time.Since(began).Milliseconds() }()
	var err error
	e.report.Images, e.report.Modules, err = e.labs.Prepare(ctx, e.scenario, e.chosen())
	return err
}

func (e *Execution) bringUp(ctx context.Context) error {
	began := time.Now()
	defer func() { e.report.Timings.Lab = time.Since(began).Milliseconds() }()
	var err error
	if e.lab, err = e.labs.Up(ctx, e.scenario, e.chosen(), e.options.Reuse); e.lab == nil {
		if heldByOther(err) { // lab and report belong to that process
			err = errors.Join(err, e.removeFolder())
		}
		return err
	}
	if err == nil {
		e.report.Guests, err = e.lab.Guests(ctx)
	}
	if err == nil {
		var unknown error
		if e.cpuBefore, unknown = e.lab.CPUTime(ctx); unknown != nil {
			e.options.Log.Warn("who uses the CPUs is not known", "error", unknown)
			e.cpuBefore = CPUTime{}
		}
	}
	if err != nil && ctx.Err() == nil {
		e.keepLogs(ctx)
	}
	return err
}

// keepLogs keeps what tells why a lab did not come up.
func (e *Execution) keepLogs(ctx context.Context) {
	kept := Evidence{Dir: filepath.Join(e.dir, "evidence", "lab")}
	logs, err := e.lab.Logs(ctx, e.logsSince(), nil)
	for name, text := range logs {
		err = errors.Join(err, kept.Write("log-"+name, text))
	}
	if err != nil {
		e.options.Log.Warn("not all logs could be kept", "error", err)
	}
}

// logsSince is from when on the logs of the lab are this run's: a lab that an earlier
// run has kept has those of that run as well.
func (e *Execution) logsSince() time.Time {
	if e.options.Reuse {
		return e.began
	}
	return time.Time{}
}

// farewell names the last step.
func (e *Execution) lastStepName() string {
	if e.options.Keep {
		return "lab is left running"
	}
	return labDown
}

// letGo keeps the lab, or takes it down.
func (e *Execution) releaseLab(ctx context.Context) error {
	lab := e.lab
	if lab == nil {
		return nil
	}
	e.measureCPU(ctx)
	e.lab = nil
	if e.options.Keep {
		lab.Release()
		return nil
	}
	return lab.Down(ctx)
}

// measureCPU notes who has used the CPUs since the lab is up. That this could not be
// told changes no verdict.
func (e *Execution) measureCPU(ctx context.Context) {
	if e.cpuBefore.All == 0 {
		return // the lab did not come up, or it was not known then
	}
	now, err := e.lab.CPUTime(ctx)
	all := float64(now.All - e.cpuBefore.All)
	if err != nil || all <= 0 {
		e.options.Log.Warn("who has used the CPUs is not known", "error", err)
		return
	}
	// A container that was started anew counts from zero.
	lab := max(0, now.Lab-e.cpuBefore.Lab)
	e.report.CPU = &report.CPU{
		Lab: float64(lab) / all, Others: max(0, float64(now.Machine-e.cpuBefore.Machine-lab)/all),
	}
}

// Finish judges what was not judged yet, and writes the report. If the last
// step, which keeps the lab or takes it down, did not run, Finish takes the
// lab down.
//
// It does nothing for a scenario that has not begun, or whose lab another
// process holds: lab and report belong to that process. It does its work once,
// however often it is called. A step that was given up is waited for; if ctx ends
// before, Finish is to be called again.
func (e *Execution) Finish(ctx context.Context) {
	if e.parallel != nil {
		e.parallel.stop()
	}
	if err := e.acquire(ctx); err != nil {
		e.left = err
		return
	}
	defer func() { <-e.busy }()
	if e.parallel != nil {
		if err := e.parallel.ended(ctx); err != nil {
			e.left = err
			return
		}
		e.setBroken(e.parallel.broken())
	}
	if e.over || e.began.IsZero() || heldByOther(e.broken) {
		return
	}
	e.over = true
	var errs []error
	for _, v := range e.variants {
		e.report.Variants = append(e.report.Variants, v.conclude(ctx))
	}
	if e.options.Repeat > 1 {
		e.report.Variants = verdict.MergeRepeats(e.judges())
	}
	switch {
	case e.lab != nil:
		e.measureCPU(ctx)
		errs = append(errs, e.takeDown(ctx, e.lab.Down))
	case e.broken != nil:
		// The lab did not come up, or not whole.
		errs = append(errs, e.takeDown(ctx, func(ctx context.Context) error { return e.labs.Down(ctx, e.scenario) }))
	}
	e.report.Verdict = string(e.verdict())
	e.report.Timings.Total = time.Since(e.began).Milliseconds()
	e.report.Steps = e.soFar.steps
	if e.dir != "" {
		if err := e.store(); !e.notStored { // else that has been said
			errs = append(errs, err)
		}
	}
	e.left = errors.Join(errs...)
}

// store writes what the run came to.
func (e *Execution) store() error {
	for _, write := range []func() error{
		func() error { return e.report.Write(e.dir) },
		func() error { return page.Write(e.dir) },
		func() error { return junit.Write(junit.InFolder(e.dir), e.report) },
		func() error { return report.SetLatest(e.dir) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// takeDown takes the lab down in place of the last step, which did not run.
func (e *Execution) takeDown(ctx context.Context, down func(context.Context) error) error {
	done := e.options.Progress.Step(labScope, labDown)
	err := down(watched(ctx, e.options.Progress, labScope))
	done(err)
	return err
}

func heldByOther(err error) bool {
	var held *kindlab.HeldError
	return errors.As(err, &held)
}

// judges are those of all runs, in their order.
func (e *Execution) judges() []*verdict.Judge {
	var all []*verdict.Judge
	for _, v := range e.variants {
		all = append(all, v.judge)
	}
	return all
}

// verdict is the run's.
func (e *Execution) verdict() framework.RunVerdict { return verdict.Run(e.broken, e.judges()...) }
