package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/verdict"
)

// variantRun carries out one case of a run: it acts on the lab, waits, and writes the history, which the judge judges.
type variantRun struct {
	*Session
	scenario *Execution
	lane     *lane
	c        verdict.Case
	judge    *verdict.Judge
	// parallel is nil if variants run one after the other.
	parallel *parallelRun

	injected []framework.Fault // to be undone, in reverse
	logged   bool              // the logs of the lab are stored
	// atTrials is set during the trials, trialOutcome after them. soFar is the latest result. Execution.mu guards all.
	atTrials     bool
	trialOutcome *framework.Outcome
	soFar        []byte
}

func newVariantRun(e *Execution, c verdict.Case, l *lane) *variantRun {
	v := &variantRun{scenario: e, lane: l, c: c, Session: &Session{h: &history.History{}}, parallel: l.runs}
	v.unstored = v.lose
	v.judge = verdict.NewJudge(c, v.h, verdict.Setting{Due: v.trialsDue}, e.scenario.LabelsOf(c.Variant))
	v.judge.Result.Topology = l.topology()
	return v
}

func (v *variantRun) plan() {
	for _, step := range v.c.Steps() {
		switch step.ID {
		case framework.StepVerdict:
			v.add(step, v.verdict)
		case framework.StepRestore:
			v.add(step, v.restore)
		default:
			v.add(step, v.step(step))
		}
	}
}

// add plans a step of the execution, which waits for the step of a parallel variant.
func (v *variantRun) add(step verdict.Step, do func(context.Context) error) {
	do = v.scenario.reported(v.c.Label, step.Name, v.judged(do))
	if v.parallel != nil {
		do = v.parallel.add(do)
	}
	v.scenario.add(Step{Scope: v.c.Label, Name: step.Name}, do)
}

// judged passes a panic of a step to the judge: other variants go on, and the lab must be taken down.
func (v *variantRun) judged(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		if panicked := v.recovered(func() error { err = do(ctx); return nil }); panicked != nil {
			v.judge.Break(panicked)
			err = panicked
		}
		return err
	}
}

func (v *variantRun) isBroken() bool {
	return v.scenario.Broken() != nil || v.parallel != nil && v.parallel.broken != nil
}

func (v *variantRun) others() []string { return verdict.ScopeOf(v.lane.scenario, v.c.Variant).Others }

func (v *variantRun) step(s verdict.Step) func(context.Context) error {
	return func(ctx context.Context) error {
		switch {
		case v.isBroken():
			return &Skipped{"there is no lab"}
		case v.judge.Ended():
			return &Skipped{"an earlier step ended the script"}
		}
		v.beginHistory()
		v.publish()
		done := v.scenario.beginStep(v.c.Label, s.ID, s.Name)
		_ = v.Session.step(ctx, s.ID, func(ctx context.Context) error { return v.carryOut(ctx, s.ID) }) // the judge reads it in the history
		v.scenario.setNotStored(v.h.Failed())
		if s.ID == framework.StepFault {
			defer v.noteTrials(false)
		}
		err := v.judge.Step(s)
		if errors.Is(err, verdict.ErrNotAsExpected) && v.judge.NoFailure() {
			done(nil)
			v.scenario.options.Progress.Note(v.c.Label, err.Error())
			return nil
		}
		done(err)
		if err != nil && v.watch != nil {
			v.keep("snapshot-at-failure", v.watch.last())
			v.keep("findings-at-failure", v.h.View().Findings())
		}
		return err
	}
}

func (v *variantRun) beginHistory() {
	if v.h.Begin().Schema != "" {
		return
	}
	o := v.scenario.options
	v.scenario.change(func(r *report.Report) {
		v.judge.Accelerator, v.judge.Images = report.Accelerator(*r), r.Images
	})
	v.h.Create(v.evidence.Dir, v.scenario.began, history.Begin{
		Scenario: v.scenario.scenario.Incident.Name, Variant: v.c.Variant.Name, Label: v.c.Label,
		Parameters: o.Parameters, Versions: o.Versions, Wait: o.Wait,
	})
}

// carryOut acts on the lab, and waits for the result. An unexpected one is no error.
func (v *variantRun) carryOut(ctx context.Context, id framework.StepID) error {
	switch id.Kind {
	case framework.KindInstall:
		return v.install(ctx)
	case framework.KindBaseline:
		return v.baseline(ctx)
	case framework.KindBefore, framework.KindAfter:
		return v.ask(ctx, v.c.Check(id))
	case framework.KindPrecursor:
		return v.precursor(ctx, v.c.Precursor(id))
	case framework.KindFault:
		return v.fault(ctx)
	case framework.KindSymptom:
		return v.symptom(ctx)
	case framework.KindFindings:
		return v.findings(ctx)
	case framework.KindObserve:
		return v.observe(ctx, v.judge.NoSymptom())
	case framework.KindRemedy:
		return v.remedy(ctx, v.c.Remedy(id), id)
	}
	return fmt.Errorf("%s is not a step that can be carried out", id)
}

func (v *variantRun) install(ctx context.Context) error {
	if err := v.meet(ctx, toInstall); err != nil {
		return err
	}
	v.attach(v.lane.lab, v.lane.scenario.Topology, func(text string) { v.scenario.options.Progress.Note(v.c.Label, text) })
	v.run.TrialsDue, v.run.Meet = v.trialsDue, func(ctx context.Context) error { return v.meet(ctx, inFault) }
	done := v.h.Do(history.Install, "", func(a *history.Act) { a.Err = v.c.Script.Install(ctx, v.run) })
	if done.Err != nil && !v.c.Classified() && v.c.Script.Refuses != nil && ctx.Err() == nil {
		if err := v.readImages(ctx); err != nil {
			return err
		}
		v.askRefusal(ctx) // perhaps the component under test refuses to start
	}
	return done.Err
}

func (v *variantRun) askRefusal(ctx context.Context) {
	if v.c.Script.Refuses != nil {
		v.h.Do(history.Refuses, "", func(a *history.Act) { a.Saw, a.Err = v.c.Script.Refuses(ctx, v.run) })
	}
}

// lose ends the run because a result cannot be stored.
func (v *variantRun) lose(err error) {
	v.judge.Lose(err)
	v.scenario.setNotStored(err)
}

func (v *variantRun) verdict(context.Context) error {
	if v.isBroken() {
		return &Skipped{"there is no lab"}
	}
	v.judge.Verdict(v.h.Now())
	result := v.judge.Result
	text := fmt.Sprintf("%s: expected %s", result.Verdict, result.Expected)
	if result.Expected == "" {
		text = result.Verdict
	}
	v.scenario.options.Progress.Note(v.c.Label, "verdict "+text)
	judged := result.Verdict != string(framework.Unknown) && result.Verdict != string(framework.Vacuous)
	if result.Verdict != result.Expected && (result.Expected != "" || !judged) {
		return errors.New(text)
	}
	return nil
}

// restore undoes the faults, if the lab is still in use or kept.
func (v *variantRun) restore(ctx context.Context) error {
	if v.lane.lab == nil || v.isBroken() {
		return &Skipped{"there is no lab"}
	}
	err := v.Session.step(ctx, framework.StepRestore, v.undoFaults)
	if err := v.h.Close(); err != nil {
		v.lose(err)
	}
	// On a lab that is not restored further variants would prove nothing.
	if v.parallel != nil { // other variants have other nodes or another lab
		v.parallel.broken = err
		return err
	}
	v.scenario.setBroken(err)
	return err
}

func (v *variantRun) undoFaults(ctx context.Context) error {
	err := v.close(ctx)
	last := v.lane.isLast(v)
	if last && (v.parallel == nil || v.parallel.apart) && !v.scenario.options.Keep {
		return err
	}
	v.publish()
	done := v.scenario.beginStep(v.c.Label, framework.StepRestore, "lab is restored")
	for _, f := range slices.Backward(v.injected) {
		if f.Undo == nil || f.Replaced && !last {
			continue
		}
		if undo := f.Undo(ctx, v.run); undo != nil {
			err = errors.Join(err, fmt.Errorf("undoing %q: %w", f.Name, undo))
		}
	}
	done(err)
	return err
}

// close stops detectors and probes, and stores evidence. Further calls do nothing.
func (v *variantRun) close(ctx context.Context) error {
	if v.watch != nil {
		v.watch.Stop()
		v.watch = nil
	}
	// If components did not come up, only their logs say why.
	if v.run != nil && !v.logged && v.lane.lab != nil {
		v.logged = true
		if err := v.keepLogs(ctx, v.scenario.logsSince(), v.others()); err != nil {
			v.scenario.options.Log.Warn("some logs could not be stored", "error", err)
		}
	}
	return errors.Join(v.stopProbes(ctx), v.closeReader())
}

// conclude ends the run of the variant in any case, and returns its result.
func (v *variantRun) conclude(ctx context.Context) report.Variant {
	if err := v.close(ctx); err != nil {
		v.judge.Fail(err.Error())
	}
	if err := v.h.Close(); err != nil {
		v.lose(err)
	}
	v.judge.Conclude(v.h.Now())
	return v.judge.Result
}

// noteTrials notes whether the variant is at its trials, and their outcome once they are over.
func (v *variantRun) noteTrials(at bool) {
	v.scenario.mu.Lock()
	defer v.scenario.mu.Unlock()
	v.atTrials, v.trialOutcome = at, v.judge.Trials()
}

// trialsDue is how many trials the variant must survive, as far as is known now.
func (v *variantRun) trialsDue() int {
	v.scenario.mu.Lock()
	var affected []framework.Outcome
	atTrials := false
	for _, other := range v.scenario.variants {
		if other.c.Variant.Role == framework.Affected {
			atTrials = atTrials || other.atTrials
			if other.trialOutcome != nil {
				affected = append(affected, *other.trialOutcome)
			}
		}
	}
	v.scenario.mu.Unlock()
	return v.judge.TrialsDue(affected, atTrials)
}
