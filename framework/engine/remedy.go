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
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
)

// What a remedy did, in the report's words.
const (
	recovers    = "recovers"
	doesNotHelp = "does-not-help"
	notJudged   = "unknown"
)

// remedyStep plans a remedy. One that breaks takes the later ones with it, for
// nobody knows what the lab is like then; what the incident has shown stands.
func (v *variantRun) remedyStep(r framework.Remedy) {
	v.addStep(r.Step(), v.remedy(r), func(ctx context.Context, err error) {
		v.ended = true
		if ctx.Err() != nil { // it was not the remedy that broke
			v.seen.broken = fmt.Errorf("%s: %w", r.Step(), err)
			return
		}
		for _, later := range v.script.Remedies[len(v.result.Remedies):] {
			entry := v.remedyEntry(later)
			entry.Verdict, entry.Reason = notJudged, fmt.Sprintf("not tried: %q could not be judged", r.Name)
			v.result.Remedies = append(v.result.Remedies, entry)
		}
	})
}

func (v *variantRun) remedyEntry(r framework.Remedy) report.Remedy {
	entry := report.Remedy{Name: r.Name, Expected: doesNotHelp}
	if r.Helps && !(v.mustChange && v.ablate == AblateRemedy) {
		entry.Expected = recovers
	}
	return entry
}

// remedy applies a remedy to the broken lab, sees what it does, and breaks
// the lab again for the next one.
func (v *variantRun) remedy(r framework.Remedy) func(context.Context) error {
	return func(ctx context.Context) error {
		entry := v.remedyEntry(r)
		err := v.try(ctx, r, &entry)
		if err != nil && !errors.Is(err, errNotAsExpected) {
			entry.Verdict, entry.Reason, entry.TimeToRecoverMS, entry.TimeToQuietMS = notJudged, err.Error(), nil, nil
		}
		v.result.Remedies = append(v.result.Remedies, entry)
		if err != nil && !errors.Is(err, errNotAsExpected) {
			return err
		}
		if undo := v.undo(ctx, r); undo != nil { // that it broke weighs more than what the remedy did
			if err != nil {
				v.fail(r.Step() + ": " + err.Error())
			}
			return undo
		}
		return err
	}
}

// try applies a remedy and judges it. An error that is not errNotAsExpected
// says why it could not be judged.
func (v *variantRun) try(ctx context.Context, r framework.Remedy, entry *report.Remedy) error {
	// A remedy proves something only if the lab is broken. What was lost up to now
	// counts; some must still be lost after it.
	broken := v.clock.Now().Add(-v.script.HurtFor)
	if _, err := v.probes.WaitOutage(ctx, namesOf(v.script.Hurt), broken, v.script.HurtFor, relapsesWithin); err != nil {
		return fmt.Errorf("the symptom is not there any more: %w", err)
	}
	began := v.clock.Now()
	entry.Began = &began
	if err := v.apply(ctx, r); err != nil {
		return err
	}
	applied := v.clock.Now()
	entry.Applied = &applied
	var err error
	if r.Helps {
		err = v.expectRecovery(ctx, r, began, applied, entry)
	} else {
		err = v.expectNoRecovery(ctx, r, applied, entry)
	}
	v.keep("probes-"+slug(r.Name), v.probes.Timelines())
	v.keep(report.HistoryName, v.watch.told())
	_, at := v.watch.now()
	v.keep("snapshot-"+slug(r.Name), at)
	return err
}

func (v *variantRun) apply(ctx context.Context, r framework.Remedy) error {
	if v.ablate == AblateRemedy {
		return nil
	}
	if !r.ReplacesEnds {
		return r.Apply(ctx, v.run)
	}
	// The probes' timelines begin anew: what the old ones saw last is asked now.
	if err := v.stop(ctx); err != nil {
		return err
	}
	if err := v.healedBefore(v.clock.Now()); err != nil {
		return err
	}
	if err := v.stopProbes(ctx); err != nil {
		return err
	}
	if err := r.Apply(ctx, v.run); err != nil {
		return err
	}
	return v.startProbes(ctx, v.script.Gone...)
}

// healedBefore says so if a probe that the incident hurts has been clean since
// before a moment: a lab that heals by itself is no recovery. A packet leaves
// within an interval of its slot.
func (v *variantRun) healedBefore(moment time.Time) error {
	for _, t := range v.probes.Timelines() {
		if run, clean := t.Clean(); clean && v.isToBeHurt(t.Probe) && run.Since.Before(moment.Add(-t.Probe.Interval)) {
			return fmt.Errorf("%s was clean before the remedy: the lab has healed by itself", t.Probe.Name)
		}
	}
	return nil
}

// expectRecovery asserts a remedy twice: traffic is back and stays, and the
// detectors are quiet again.
func (v *variantRun) expectRecovery(ctx context.Context, r framework.Remedy, began, applied time.Time, entry *report.Remedy) error {
	bound := max(time.Second, r.Bound-v.clock.Now().Sub(began))
	if v.ablate == AblateRemedy {
		bound = switchedOffFor
	}
	clean, err := v.probes.WaitClean(ctx, v.running(), recoveredFor, bound)
	if err == nil {
		if err := v.healedBefore(began); err != nil {
			return err
		}
		if took := clean.Sub(began); v.ablate != AblateRemedy && took > r.Bound {
			entry.Verdict, entry.Reason = doesNotHelp, fmt.Sprintf("traffic was back after %s, which is over its bound of %s", took.Round(time.Second), r.Bound)
			return fmt.Errorf("%w: %s", errNotAsExpected, entry.Reason)
		}
		entry.TimeToRecoverMS = milliseconds(new(clean.Sub(began)))
		var quiet time.Time
		if quiet, err = v.watch.untilQuiet(ctx, began, max(v.lookWithin(), r.Bound-v.clock.Now().Sub(began))+quietFor); err == nil {
			entry.TimeToQuietMS = milliseconds(new(quiet.Sub(began)))
			err = v.staysClean(ctx, clean)
		}
	}
	if ctx.Err() != nil {
		return err
	}
	var blind *blindError
	if errors.As(err, &blind) || errors.Is(err, probe.ErrGone) {
		return err
	}
	if why := v.tooFewSince(later(applied, clean)); why != "" {
		return errors.New(why)
	}
	if err != nil {
		entry.Verdict, entry.Reason, entry.TimeToRecoverMS, entry.TimeToQuietMS = doesNotHelp, err.Error(), nil, nil
		return fmt.Errorf("%w: %w", errNotAsExpected, err)
	}
	entry.Verdict = recovers
	return nil
}

// staysClean asserts that no running probe was hurt again since it was clean.
func (v *variantRun) staysClean(ctx context.Context, since time.Time) error {
	running := v.running()
	until := v.clock.Now() // a late reply may take back what seems to be lost
	if err := v.fateKnown(ctx, until); err != nil {
		return err
	}
	if again, _ := v.hurt(since, until, func(p probe.Probe) bool { return slices.Contains(running, p.Name) }); len(again) > 0 {
		return fmt.Errorf("traffic came back, and %s were hurt again before the detectors were quiet", strings.Join(again, ", "))
	}
	return nil
}

// tooFewSince says why the traffic of the running probes since a moment proves
// nothing; empty where it does.
func (v *variantRun) tooFewSince(since time.Time) string {
	running := v.running()
	for _, t := range v.probes.Timelines() {
		until := v.clock.Now().Add(-t.Probe.Timeout) // what was sent later is not judged yet
		if slices.Contains(running, t.Probe.Name) && until.Sub(since) >= recoveredFor {
			if why := tooFew(t, since, until); why != "" {
				return why
			}
		}
	}
	return ""
}

// expectNoRecovery asserts that a remedy changes nothing: for a while from its
// end on not one packet gets through where the incident hurts, and the
// detectors go on saying why.
func (v *variantRun) expectNoRecovery(ctx context.Context, r framework.Remedy, applied time.Time, entry *report.Remedy) error {
	end := applied.Add(cmp.Or(r.Watch, unhelpedFor))
	if err := v.fateKnown(ctx, end); err != nil {
		return err
	}
	for _, name := range namesOf(v.script.Hurt) {
		t, err := v.probes.Timeline(name)
		if err != nil {
			return err
		}
		if counts := t.Between(applied, end); counts.Received > 0 {
			entry.Verdict = recovers
			entry.Reason = fmt.Sprintf("%d of %d packets of %s got through", counts.Received, counts.Sent, name)
			return fmt.Errorf("%w: %s", errNotAsExpected, entry.Reason)
		}
		if why := tooFew(t, applied, end); why != "" {
			return errors.New(why)
		}
	}
	entry.Verdict = doesNotHelp
	if v.ablate == AblateDetector {
		return nil
	}
	// One named alarm is enough: of a change in the past the detectors may know no
	// more. What has only begun to change is given time to settle, so that all may
	// be gone for a moment; and one look may be blind.
	named := slices.Concat(v.script.Named, v.script.Passing)
	err := v.watch.until(ctx, "the detectors to go on", v.clock.Now(), v.lookWithin(), func(findings []detect.Finding) bool {
		active := slices.DeleteFunc(findings, func(f detect.Finding) bool { return f.State != detect.Active })
		return len(framework.Unnamed(active, named...)) < len(active)
	})
	var timeout *await.TimeoutError
	if errors.As(err, &timeout) {
		if blind := v.watch.blindSince(end); blind != "" {
			return &blindError{fmt.Errorf("%s: %w", blind, err)}
		}
		entry.Reason = "the detectors do not say why any more, although users are hurt"
		return fmt.Errorf("%w: %s: %w", errNotAsExpected, entry.Reason, err)
	}
	return err
}

// undo goes back to the broken state, and sees that it is broken.
func (v *variantRun) undo(ctx context.Context, r framework.Remedy) error {
	if r.Undo == nil || v.ablate == AblateRemedy {
		return nil
	}
	began := v.clock.Now()
	if err := r.Undo(ctx, v.run); err != nil {
		return fmt.Errorf("undoing it: %w", err)
	}
	if _, err := v.probes.WaitOutage(ctx, namesOf(v.script.Hurt), began, v.script.HurtFor, relapsesWithin); err != nil {
		return fmt.Errorf("undone, but the symptom did not come back: %w", err)
	}
	return nil
}

// waiting is the remedy of whoever does nothing: to see for a time whether the
// incident heals by itself. It must not.
func waiting(watch time.Duration) framework.Remedy {
	return framework.Remedy{
		Name: "wait " + watch.String(), Watch: watch,
		Apply: func(context.Context, *framework.Run) error { return nil },
	}
}

// running names the probes that were not stopped.
func (v *variantRun) running() []string {
	var names []string
	for _, t := range v.probes.Timelines() {
		if t.Stopped.IsZero() {
			names = append(names, t.Probe.Name)
		}
	}
	return names
}

// slug makes a file's name of a step's.
func slug(name string) string {
	return strings.Join(slices.DeleteFunc(strings.FieldsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9')
	}), func(s string) bool { return s == "" }), "-")
}
