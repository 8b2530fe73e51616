package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/verdict"
)

// Plan is a run of steps on a lab under traffic, such as an upgrade. It has no report: its caller judges the history.
type Plan struct {
	Scope string
	// Scenario has the topology of the lab, and one variant with its images.
	Scenario framework.Scenario
	// History has begun. Its caller closes it.
	History *history.History
	// Secrets are removed from stored logs: programs log their settings.
	Secrets []string
	// Steps are the steps between the lab's first and last steps.
	Steps func(*Session) []PlanStep
}

// PlanStep is a step of a Plan.
type PlanStep struct {
	ID   framework.StepID
	Name string
	// Due reports, when the step begins, whether there is something to do; nil: always.
	Due func() bool
	// Do carries it out. After a verdict.ErrNotAsExpected the plan goes on. Any other error ends it.
	Do func(context.Context) error
}

type planRun struct {
	*Plan
	session *Session
	failed  bool  // a step failed: the logs may say why
	lost    error // evidence that could not be stored
}

// NewPlan plans a Plan. It uses the options Output (folder of the evidence, may be empty), Keep, Reuse, Progress, Log.
func NewPlan(p Plan, labs Labs, o Options) *Execution {
	e := newExecution(p.Scenario, labs, o)
	e.plan = &planRun{Plan: &p}
	e.plan.session = &Session{
		h: p.History, secrets: p.Secrets, evidence: Evidence{Dir: o.Output},
		unstored: func(err error) { e.plan.lost = errors.Join(e.plan.lost, err) },
	}
	e.planLanes(slices.Clone(p.Scenario.Variants))
	first := e.lanes[0]
	e.labStep(first, labImages, e.prepare)
	e.labStep(first, labUp, e.bringUp)
	for _, step := range p.Steps(e.plan.session) {
		e.add(Step{Scope: p.Scope, Name: step.Name}, e.reported(p.Scope, step.Name, func(ctx context.Context) error {
			return e.planStep(ctx, first, step)
		}))
	}
	e.labStep(first, e.lastStepName(), e.releaseLab)
	return e
}

func (e *Execution) planStep(ctx context.Context, l *lane, step PlanStep) error {
	session := e.plan.session
	switch {
	case e.Broken() != nil || l.lab == nil:
		return &Skipped{"an earlier step failed"}
	case step.Due != nil && !step.Due():
		return &Skipped{"it is not due"}
	case session.run == nil:
		session.attach(l.lab, e.scenario.Topology, func(text string) { e.options.Progress.Note(e.plan.Scope, text) })
	}
	done := e.beginStep(e.plan.Scope, step.ID, step.Name)
	err := session.step(ctx, step.ID, step.Do)
	done(err)
	e.plan.failed = e.plan.failed || err != nil && ctx.Err() == nil
	if !errors.Is(err, verdict.ErrNotAsExpected) {
		e.setBroken(err)
	}
	return err
}

// closePlan ends the plan's session, if there is a plan. Further calls do nothing.
func (e *Execution) closePlan(ctx context.Context) error {
	if e.plan == nil || e.plan.session.run == nil {
		return nil
	}
	s := e.plan.session
	if s.watch != nil {
		s.watch.Stop()
		s.watch = nil
	}
	if e.plan.failed {
		e.plan.failed = false
		if err := s.keepLogs(ctx, e.logsSince(), nil); err != nil {
			s.run.Note("not all logs could be stored: " + err.Error())
		}
	}
	err := errors.Join(s.stopProbes(ctx), s.closeReader(), e.plan.lost)
	e.plan.lost = nil
	return err
}
