// Package engine runs scenarios on labs, which it knows by a small interface. Package suite connects it to Docker
// and Ginkgo.
//
// An Execution is one scenario of a run, or a Plan. Its Steps are planned before anything runs. Each is called even
// if an earlier one failed, and returns Skipped if it has nothing to do. Finish ends the execution in any case, and
// writes the report of a scenario. A preliminary report and page are written before each step.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/relapse-dev/relapse/topology/each"
)

// Execution is one scenario of a run. Its variants run one after the other or, if they have their own nodes, in
// parallel; with Options.Second on two labs side by side (lane).
type Execution struct {
	scenario framework.Scenario
	options  Options
	labs     Labs
	dir      string // of the run; empty until openFolder

	lanes     []*lane
	steps     []Step
	variants  []*variantRun // in the scenario's order
	plan      *planRun      // in place of variants; nil for a scenario
	began     time.Time
	over      bool // Finish has run
	announced sync.Once
	cpu       cpuUse
	// busy has a value while a step or Finish runs. A runner may abandon a step, as Ginkgo does at a second
	// interrupt, and call Finish while the step still makes containers.
	busy   chan struct{}
	report report.Report
	// parallel are the variants or the lanes that run in parallel; nil if none do.
	parallel *parallel
	// mu guards broken, notStored, cpu, the report until Finish, and the results and trials of variants.
	mu sync.Mutex
	// withoutPage leaves the preliminary page out: most tests do not read it.
	withoutPage bool
	// writing keeps two variants from writing the report at once.
	writing sync.Mutex
	// broken is why the run cannot continue. notStored is set if the reason is a result that cannot be stored.
	broken    error
	notStored bool
	left      error
}

// Step is a part of an execution.
type Step struct {
	// Scope is the case that the step belongs to (verdict.Case.Label), "lab", or "second lab".
	Scope string
	Name  string
	// Run carries out the step. The error is a *Skipped if there is nothing to do.
	Run func(ctx context.Context) error
}

const (
	labImages   = "images are there"
	labUp       = "lab is up"
	labDown     = "lab is down"
	labRestored = "lab is as it was"
)

// Skipped says why a step had nothing to do.
type Skipped struct{ Why string }

func (s *Skipped) Error() string { return s.Why }

// New plans the execution of a scenario. Nothing runs yet.
func New(s framework.Scenario, labs Labs, o Options) *Execution {
	e := newExecution(s, labs, o)
	var chosen []framework.Variant
	for _, v := range s.Variants {
		if len(o.Variants) > 0 && !slices.Contains(o.Variants, v.Name) {
			continue
		}
		if runnable, why := v.Runnable(); !runnable {
			e.report.NotRun = append(e.report.NotRun, report.NotRun{Name: v.Name, Reason: why})
			continue
		}
		chosen = append(chosen, v)
	}
	e.planLanes(chosen)
	first := e.lanes[0]
	e.labStep(first, labImages, e.prepare)
	e.labStep(first, labUp, e.bringUp)
	e.planVariants(chosen)
	if !e.HasSecondLab() { // with a second lab each lane ends with this step
		e.labStep(first, e.lastStepName(), e.releaseLab)
	}
	return e
}

func newExecution(s framework.Scenario, labs Labs, o Options) *Execution {
	e := &Execution{scenario: s, options: o.withDefaults(), labs: labs, busy: make(chan struct{}, 1)}
	e.report = report.Report{
		Schema: report.Schema, Scenario: s.Incident.Name, Verdict: string(framework.Inconclusive),
		Ablated: string(o.Ablate), Machine: o.Machine, Relapse: o.Relapse, Variants: []report.Variant{},
		Incident: incidentOf(s.Incident), Command: e.options.Command(s), Owner: string(s.Owner),
	}
	return e
}

func (e *Execution) planVariants(chosen []framework.Variant) {
	for _, v := range chosen {
		e.planVariant(v)
	}
	if e.options.Ablate == "" {
		roles := each.Of(e.chosen(), func(v framework.Variant) framework.Role { return v.Role })
		e.report.Half = framework.Half(roles...)
	}
	e.report.Topology = report.TopologyOf(e.scenario.TopologyFor(e.chosen()))
}

func (e *Execution) planVariant(v framework.Variant) {
	l := e.laneOf(v)
	v = l.variant(v.Name)
	if e.parallel != nil && len(v.Nodes) > 0 {
		l.runs = e.parallel.add()
	}
	if l.isSecond() && v.Name == l.variants[0].Name {
		e.laneStep(l, labImages, e.prepare)
		e.laneStep(l, labUp, e.bringUp)
	}
	for _, c := range verdict.Cases(v, e.options.cases()) {
		run := newVariantRun(e, c, l)
		e.variants = append(e.variants, run)
		run.plan()
	}
	if e.HasSecondLab() && v.Name == l.variants[len(l.variants)-1].Name {
		e.laneStep(l, labDown, e.releaseLab)
	}
}

// Steps are the steps of the execution, in the order in which they run.
func (e *Execution) Steps() []Step { return e.steps }

// Dir is the folder of the run; empty if nothing was written.
func (e *Execution) Dir() string { return e.dir }

// Report returns the report after Finish. A scenario that has not begun, or whose lab another process uses, has none.
func (e *Execution) Report() (r report.Report, there bool) {
	if !e.over { // an abandoned step may still write it
		return report.Report{}, false
	}
	return e.report, true
}

// Broken is why the run could not continue, such as an image that does not build; nil if it could.
func (e *Execution) Broken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.broken
}

func (e *Execution) setBroken(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broken = cmp.Or(e.broken, err)
}

func (e *Execution) setNotStored(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil && err != nil {
		e.broken, e.notStored = fmt.Errorf("the run could not be stored: %w", err), true
	}
}

// now is monotonic: setting the machine's clock during the run has no effect.
func (e *Execution) now() time.Time { return e.began.Add(time.Since(e.began)) }

// Left is why the end failed: parts of the lab may be left, or no report was written.
func (e *Execution) Left() error { return e.left }

// Announce passes the steps to Progress, once.
func (e *Execution) Announce() { e.announced.Do(func() { e.options.Progress.Plan(e.steps) }) }

// Run runs all steps and then Finish, which may take the time undo. When ctx ends, no further step begins.
func (e *Execution) Run(ctx context.Context, undo time.Duration) {
	e.Announce()
	for _, step := range e.steps {
		if ctx.Err() != nil {
			break
		}
		_ = step.Run(ctx) // the report has the error
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undo)
	defer cancel()
	e.Finish(ctx)
}

func (e *Execution) add(s Step, do func(context.Context) error) {
	s.Run = func(ctx context.Context) (err error) {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		defer func() {
			if p := recover(); p != nil { // the lab must be taken down all the same
				err = e.panicked(s.Name, p)
				e.setBroken(err)
			}
			<-e.busy
		}()
		return do(ctx)
	}
	e.steps = append(e.steps, s)
}

// acquire waits until no step and no Finish runs. Without an error, the caller removes the value from busy when done.
func (e *Execution) acquire(ctx context.Context) error {
	select {
	case e.busy <- struct{}{}:
		return nil
	default: // the step handles an ended ctx
	}
	select {
	case e.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for an abandoned step: %w", ctx.Err())
	}
}

// labStep plans a step of a lab before or after its variants' steps. If it fails, the run is broken.
func (e *Execution) labStep(l *lane, name string, do func(context.Context, *lane) error) {
	e.add(Step{Scope: l.scope, Name: name}, e.onLab(l, name, do, e.Broken, e.setBroken))
}

// laneStep plans a step of a lab among its variants' steps. If it fails, the lane is broken; the other lane goes on.
func (e *Execution) laneStep(l *lane, name string, do func(context.Context, *lane) error) {
	broken := func() error { return errors.Join(e.Broken(), l.runs.broken) }
	breaks := func(err error) { l.runs.broken = errors.Join(l.runs.broken, err) }
	e.add(Step{Scope: l.scope, Name: name}, l.runs.add(e.onLab(l, name, do, broken, breaks)))
}

func (e *Execution) onLab(
	l *lane, name string, do func(context.Context, *lane) error, broken func() error, breaks func(error),
) func(context.Context) error {
	return e.reported(l.scope, name, func(ctx context.Context) (err error) {
		if broken() != nil {
			return &Skipped{"an earlier step failed"}
		}
		defer func() {
			if p := recover(); p != nil { // labs must be taken down all the same
				err = e.panicked(name, p)
			}
			breaks(err)
		}()
		if e.began.IsZero() {
			e.began = time.Now()
			e.report.Started = e.began
		}
		// The first step makes the folder, so that a run that is killed while its lab comes up has a report, too.
		if err := e.openFolder(); err != nil {
			return err
		}
		done := e.beginStep(l.scope, framework.StepID{}, name)
		err = do(ctx, l)
		done(err)
		return err
	})
}

func (e *Execution) panicked(step string, p any) error {
	e.options.Log.Error("a step panicked", "step", step, "panic", p, "stack", string(debug.Stack()))
	return &history.PanicError{Value: p}
}

func (e *Execution) openFolder() error {
	if e.dir != "" || e.plan != nil {
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

func (e *Execution) removeFolder() error {
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("removing the folder of a run that has not begun: %w", err)
	}
	e.dir = ""
	return nil
}

func (e *Execution) chosen() []framework.Variant {
	return slices.CompactFunc(each.Of(e.variants, func(v *variantRun) framework.Variant { return v.c.Variant }),
		func(a, b framework.Variant) bool { return a.Name == b.Name })
}

func (e *Execution) prepare(ctx context.Context, l *lane) error {
	began := time.Now()
	p, err := e.labs.Prepare(ctx, l.scenario, l.variants)
	e.change(func(r *report.Report) {
		if !l.isSecond() {
			r.Timings.Images = time.Since(began).Milliseconds()
		}
		// both makes new maps: another goroutine may read the old ones.
		r.Images, r.Origins = both(r.Images, p.Digests), both(r.Origins, p.Origins)
		for _, m := range p.Modules {
			if !slices.Contains(r.Modules, m) {
				r.Modules = append(slices.Clone(r.Modules), m)
			}
		}
	})
	return err
}

func both(a, b map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func (e *Execution) change(do func(*report.Report)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do(&e.report)
}

func (e *Execution) bringUp(ctx context.Context, l *lane) error {
	began := time.Now()
	var err error
	if l.lab, err = e.labs.Up(ctx, l.scenario, l.variants, e.options.Reuse); l.lab == nil {
		var lockErr interface{ HeldByOther() bool }
		if l.busy = errors.As(err, &lockErr) && lockErr.HeldByOther(); l.busy && !l.isSecond() { // no report
			err = errors.Join(err, e.removeFolder())
		}
		return err
	}
	var guests []report.Guest
	if err == nil {
		guests, err = l.lab.Guests(ctx)
	}
	e.change(func(r *report.Report) {
		if !l.isSecond() {
			r.Timings.Lab = time.Since(began).Milliseconds()
		}
		r.Guests = append(slices.Clone(r.Guests), guests...)
	})
	if err == nil {
		e.startCPU(ctx, l)
	}
	if err != nil && ctx.Err() == nil {
		e.keepLogs(ctx, l)
	}
	return err
}

func (e *Execution) keepLogs(ctx context.Context, l *lane) {
	s := &Session{lab: l.lab, evidence: Evidence{Dir: filepath.Join(e.dir, "evidence", slug(l.scope))}}
	if e.plan != nil {
		s.evidence.Dir = e.options.Output
	}
	var unstored error
	s.unstored = func(err error) { unstored = errors.Join(unstored, err) }
	if err := errors.Join(s.keepLogs(ctx, e.logsSince(), nil), unstored); err != nil {
		e.options.Log.Warn("some logs could not be stored", "error", err)
	}
}

// logsSince is when this run began, if the lab is reused and has older logs; zero for a new lab.
func (e *Execution) logsSince() time.Time {
	if e.options.Reuse || e.options.Foreign {
		return e.began
	}
	return time.Time{}
}

func (e *Execution) lastStepName() string {
	if e.options.Keep {
		return "lab is left running"
	}
	return e.downName()
}

func (e *Execution) downName() string {
	if e.options.Foreign {
		return labRestored
	}
	return labDown
}

func (e *Execution) releaseLab(ctx context.Context, l *lane) error {
	lab := l.lab
	if lab == nil {
		return nil
	}
	closed := e.closePlan(ctx)
	e.measureCPU(ctx, l)
	l.lab = nil
	if e.options.Keep {
		lab.Release()
		return closed
	}
	return errors.Join(closed, lab.Down(ctx))
}

// Finish judges variants without a verdict, writes the report, and takes the lab down if the last step did not run. It
// does nothing if the scenario has not begun, if another process uses its lab, or when called again. It waits for an
// abandoned step; if ctx ends before that, Finish must be called again.
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
		e.setBroken(errors.Join(each.Of(e.parallel.all, func(one *parallelRun) error { return one.broken })...))
	}
	if e.over || e.began.IsZero() || e.lanes[0].busy {
		return
	}
	e.over = true
	errs := []error{e.closePlan(ctx)}
	for _, v := range e.variants {
		e.report.Variants = append(e.report.Variants, v.conclude(ctx))
	}
	if e.options.Repeat > 1 {
		e.report.Variants = verdict.MergeRepeats(e.judges())
	}
	for _, l := range e.lanes {
		switch {
		case l.lab != nil:
			e.measureCPU(ctx, l)
			errs = append(errs, e.takeDown(ctx, l, l.lab.Down))
		case e.broken != nil && !l.busy:
			// The lab did not come up, or only in part.
			errs = append(errs, e.takeDown(ctx, l, func(ctx context.Context) error { return e.labs.Down(ctx, l.scenario) }))
		}
	}
	e.report.Verdict = string(e.verdict())
	e.report.Timings.Total = time.Since(e.began).Milliseconds()
	if e.dir != "" {
		if err := e.store(); !e.notStored { // with notStored broken has the error
			errs = append(errs, err)
		}
	}
	e.left = errors.Join(errs...)
}

func (e *Execution) store() error {
	for _, write := range []func() error{
		func() error { return e.report.Write(e.dir) },
		func() error { return page.Write(e.dir, e.histories()) },
		func() error { return junit.Write(junit.InFolder(e.dir), e.report) },
		func() error { return report.SetLatest(e.dir) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func (e *Execution) takeDown(ctx context.Context, l *lane, down func(context.Context) error) error {
	done := e.options.Progress.Step(l.scope, e.downName())
	err := down(watched(ctx, e.options.Progress, l.scope))
	done(err)
	return err
}

func (e *Execution) judges() []*verdict.Judge {
	return each.Of(e.variants, func(v *variantRun) *verdict.Judge { return v.judge })
}

func (e *Execution) verdict() framework.RunVerdict { return verdict.Run(e.broken, e.judges()...) }
