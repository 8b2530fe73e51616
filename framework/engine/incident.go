package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/each"
)

func (v *variantRun) baseline(ctx context.Context) error {
	if err := v.startProbes(ctx); err != nil {
		return err
	}
	if err := v.startWatch(ctx); err != nil {
		return err
	}
	called := v.h.Now()
	_, err := v.probes.WaitClean(ctx, nil, verdict.BaselineFor, baselineWithin)
	if ctx.Err() != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.ProbesClean, Began: called, Bound: baselineWithin})
	if err == nil { // the same time counts for both, unless there were active findings
		err = v.untilNoFindings(ctx, history.NoFindings, v.judge.Began(), baselineWithin+v.pollWithin())
	}
	v.keep("snapshot-baseline", v.watch.last())
	if ctx.Err() != nil {
		return err
	}
	return nil
}

func (v *variantRun) startProbes(ctx context.Context, without ...framework.Endpoint) error {
	gone := func(name string) bool {
		return slices.ContainsFunc(without, func(e framework.Endpoint) bool { return e.Name == name })
	}
	ends := slices.DeleteFunc(slices.Clone(v.c.Script.Endpoints), func(e framework.Endpoint) bool { return gone(e.Name) })
	probes := slices.DeleteFunc(slices.Clone(v.c.Script.Probes), func(p probe.Probe) bool { return gone(p.From) || gone(p.To) })
	return v.StartProbes(ctx, ends, probes)
}

func (v *variantRun) startWatch(ctx context.Context) error {
	d := &history.Detection{Every: v.c.Every(), Scope: verdict.ScopeOf(v.lane.scenario, v.c.Variant)}
	if v.c.Ablate != verdict.AblateDetector {
		d.Detectors = v.c.Script.Detectors
	}
	said := &news{progress: v.scenario.options.Progress, scope: v.c.Label, probes: &v.live, findings: map[detect.ID]bool{}}
	return v.StartWatch(ctx, v.c.Script.Reads(), v.others(), d, said.poll)
}

// inject injects a fault, unless faults are switched off, and notes it for the undo.
func (v *variantRun) inject(ctx context.Context, f framework.Fault) (done history.Act, over time.Time) {
	done = v.h.Do(history.Inject, "", func(a *history.Act) {
		a.Saw = f.Name
		if v.c.Ablate != verdict.AblateFault {
			v.injected = append(v.injected, f) // before Inject: a failed injection is undone, too
			a.Err = f.Inject(ctx, v.run)
		}
	})
	return done, v.h.Now()
}

func (v *variantRun) tookEffect(ctx context.Context, f framework.Fault) history.Act {
	return v.h.Do(history.TookEffect, "", func(a *history.Act) {
		tookEffect := func(ctx context.Context) (bool, string, error) {
			holds, saw, err := f.TookEffect(ctx, v.run)
			return holds && err == nil, saw, err
		}
		var err error
		if a.Holds, a.Saw, err = tookEffect(ctx); err != nil && (v.c.Ablate == verdict.AblateFault || ctx.Err() != nil) {
			a.Err = fmt.Errorf("checking whether %q took effect: %w", f.Name, err)
		}
		if a.Holds || v.c.Ablate == verdict.AblateFault || a.Err != nil {
			return
		}
		askAgain(ctx, a, f.Name+" to take effect", effectWithin, tookEffect)
	})
}

func (v *variantRun) precursor(ctx context.Context, form framework.Precursor) error {
	if err := v.stopGone(ctx); err != nil {
		return err
	}
	done, injected := v.inject(ctx, form.Fault)
	if done.Err != nil {
		return done.Err
	}
	if effect := v.tookEffect(ctx, form.Fault); effect.Err != nil || !effect.Holds {
		return effect.Err
	}
	if err := v.untilExpected(ctx, form.Expected, injected, cmp.Or(form.Within, expectedWithin)); err != nil {
		return err
	}
	if err := v.untilWatched(ctx, verdict.Later(v.h.Now(), injected.Add(precursorFor))); err != nil {
		return err
	}
	for _, c := range form.Aftermath {
		if err := v.ask(ctx, c); err != nil {
			return err
		}
	}
	if !verdict.ExpectsActive(form) {
		if err := v.untilNoFindings(ctx, history.NoFindings, injected, noFindingsWithin+v.pollWithin(), form.Transient...); err != nil {
			return err
		}
	}
	v.h.MarkPolls(history.Mark{Moment: history.Checked}, v.h.View())
	v.keep("snapshot-"+slug(form.Name), v.watch.last())
	return v.takeBack(ctx, form)
}

// takeBack undoes a precursor, before the rest of the script runs.
func (v *variantRun) takeBack(ctx context.Context, form framework.Precursor) error {
	if !form.Undone || v.c.Ablate == verdict.AblateFault {
		return nil
	}
	done := v.h.Do(history.Undo, "", func(a *history.Act) { a.Err = form.Fault.Undo(ctx, v.run) })
	if done.Err != nil {
		return fmt.Errorf("undoing it: %w", done.Err)
	}
	v.injected = v.injected[:len(v.injected)-1]
	return v.untilNoFindings(ctx, history.TakenBack, v.h.Now(), noFindingsWithin)
}

func (v *variantRun) stopGone(ctx context.Context) error {
	gone := each.Where(v.probes.Timelines(), func(t probe.Timeline) bool { return v.c.IsGone(t.Probe) && t.Stopped.IsZero() })
	if len(gone) == 0 { // to Stop, no name means all
		return nil
	}
	return v.probes.Stop(ctx, each.Of(gone, func(t probe.Timeline) string { return t.Probe.Name })...)
}

func (v *variantRun) fault(ctx context.Context) error {
	if err := v.stopGone(ctx); err != nil {
		return err
	}
	v.noteTrials(v.c.Script.Trials != nil)
	if err := v.meet(ctx, beforeFault); err != nil {
		return err
	}
	f := v.c.Script.Fault
	v.h.Mark(history.Mark{Moment: history.Injecting})
	done, injected := v.inject(ctx, f)
	if done.Err != nil {
		return done.Err
	}
	if race := v.c.Script.Trials; race != nil {
		v.h.Do(history.Trials, "", func(a *history.Act) { a.Rounds, a.Holds = race.Result() })
	}
	if effect := v.tookEffect(ctx, f); effect.Err != nil || !effect.Holds {
		return effect.Err
	}
	return v.untilPolled(ctx, injected) // later steps must not read an older snapshot
}

// symptom waits until every probe of the incident loses packets. If a probe does not, within the bound, it observes to
// the end: there is nothing to detect and nothing to remedy.
func (v *variantRun) symptom(ctx context.Context) error {
	impacted, faulted := v.c.Impacted(), v.h.Monotonic(v.judge.Faulted())
	bound := v.judge.Injected().Add(cmp.Or(v.c.Script.SymptomWithin, v.c.Script.Observe))
	var names []string
	for again := true; again; {
		_, err := v.probes.WaitOutage(ctx, impacted, faulted, v.c.Script.MinOutage, max(time.Second, bound.Sub(v.h.Now())))
		if ctx.Err() != nil || (err != nil && !errors.Is(err, probe.ErrBound)) {
			return err
		}
		watched := v.h.Now()
		if err := v.UntilKnown(ctx, watched); err != nil {
			return err
		}
		v.MarkPackets(history.Mark{Moment: history.Watched, Part: "symptom", Until: watched})
		names, _ = v.judge.Symptom(v.h.View(), watched)
		// A packet that seemed lost may have been late: the symptom may still come.
		again = err == nil && len(names) < len(impacted) && v.h.Now().Before(bound)
	}
	if len(names) == len(impacted) {
		return nil
	}
	return v.observe(ctx, !v.c.MayReproduce() || len(names) == 0)
}

func (v *variantRun) findings(ctx context.Context) error {
	err := v.untilExpected(ctx, v.c.Script.Expected, v.judge.Injected(), cmp.Or(v.c.Script.ExpectedWithin, expectedWithin))
	v.keep("snapshot-"+report.AfterFault, v.watch.last())
	return err
}

// observe watches to the end of Observe and, without a symptom, until no finding is active.
func (v *variantRun) observe(ctx context.Context, noSymptom bool) error {
	s := v.c.Script
	end := verdict.Later(v.h.Now(), v.judge.Injected().Add(s.Observe))
	if err := v.untilWatched(ctx, end); err != nil {
		return err
	}
	names, _ := v.judge.Symptom(v.h.View(), end)
	if noSymptom { // the time without findings must reach to the end
		bound := max(noFindingsWithin, s.ExpectedWithin) + v.pollWithin()
		err := v.untilNoFindings(ctx, history.NoFindings, v.judge.Injected(), bound, s.Expected...)
		if err != nil {
			return err
		}
	}
	v.keep("snapshot-"+report.Observed, v.watch.last())
	if err := v.readImages(ctx); err != nil {
		return err
	}
	if noSymptom && len(names) == 0 {
		v.askRefusal(ctx)
	}
	return ctx.Err()
}

// remedy applies a remedy, watches its effect, and breaks the lab again for the next one.
func (v *variantRun) remedy(ctx context.Context, r framework.Remedy, id framework.StepID) error {
	if err := v.untilLost(ctx, history.Broken, v.h.Now().Add(-v.c.Script.MinOutage)); err != nil {
		return fmt.Errorf("the symptom has gone: %w", err)
	}
	done := v.h.Do(history.Apply, "", func(a *history.Act) { a.Err = v.apply(ctx, r) })
	if done.Err != nil {
		return done.Err
	}
	watch := v.watchRecovery
	if !r.Helps {
		watch = v.watchNoRecovery
	}
	err := watch(ctx, r, done.Began)
	v.keep("snapshot-"+slug(r.Name), v.watch.last())
	if err != nil {
		return err
	}
	// After a remedy that could not be judged, no other remedy is tried: no undo is needed.
	var entry report.Remedy
	tried := v.judge.Tried(r, v.h.UnderWay(id), &entry)
	if r.Undo == nil || v.c.Ablate == verdict.AblateRemedy || tried != nil && !errors.Is(tried, verdict.ErrNotAsExpected) {
		return nil
	}
	began := v.h.Now()
	undone := v.h.Do(history.Undo, "", func(a *history.Act) { a.Err = r.Undo(ctx, v.run) })
	if undone.Err != nil {
		return fmt.Errorf("undoing it: %w", undone.Err)
	}
	if err := v.untilLost(ctx, history.BrokenAgain, began); err != nil {
		return fmt.Errorf("undone, but the symptom did not return: %w", err)
	}
	return nil
}

func (v *variantRun) apply(ctx context.Context, r framework.Remedy) error {
	if v.c.Ablate == verdict.AblateRemedy {
		return nil
	}
	if !r.ReplacesEndpoints {
		return r.Apply(ctx, v.run)
	}
	// New probes have new timelines: the old ones are recorded now.
	if err := v.probes.Stop(ctx); err != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.Replaced, Until: v.h.Now()})
	if err := v.stopProbes(ctx); err != nil {
		return err
	}
	if err := r.Apply(ctx, v.run); err != nil {
		return err
	}
	return v.startProbes(ctx, v.c.Script.Gone...)
}

// watchRecovery waits until traffic has recovered and there are no active findings.
func (v *variantRun) watchRecovery(ctx context.Context, r framework.Remedy, began time.Time) error {
	bound := max(0, r.Bound-v.h.Now().Sub(began)) + verdict.RecoveredFor(v.c.Script)
	if v.c.Ablate == verdict.AblateRemedy {
		bound = switchedOffFor
	}
	called := v.h.Now()
	_, err := v.probes.WaitClean(ctx, verdict.Running(v.probes.Timelines()), verdict.RecoveredFor(v.c.Script), bound)
	if ctx.Err() != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.Back, Began: called, Bound: bound})
	if err != nil {
		return nil
	}
	bound = max(v.pollWithin(), r.Bound-v.h.Now().Sub(began)) + verdict.NoFindingsFor
	if err := v.untilNoFindings(ctx, history.NoFindings, began, bound); err != nil {
		return err
	}
	until := v.h.Now() // packets that seem lost may be late
	if err := v.UntilKnown(ctx, until); err != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.StaysBack, Until: until})
	return nil
}

func (v *variantRun) watchNoRecovery(ctx context.Context, r framework.Remedy, _ time.Time) error {
	end := v.h.Now().Add(cmp.Or(r.Watch, noRecoveryFor))
	if err := v.UntilKnown(ctx, end); err != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.Watched, Until: end})
	if v.c.Ablate == verdict.AblateDetector {
		return nil
	}
	// After a change there may be no active finding for a moment: findings are pending, or a source is unavailable.
	since := v.h.Now()
	return v.untilFound(ctx, history.StillFound, "findings that persist", since, v.pollWithin(), func(saw history.View) bool {
		return v.judge.StillReported(saw, since)
	})
}

func slug(name string) string {
	return strings.Join(strings.FieldsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	}), "-")
}
