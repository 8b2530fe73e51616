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
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
)

// inject makes a fault happen, unless faults are switched off, and notes it
// for the undo.
func (v *variantRun) inject(ctx context.Context, f fault.Fault) error {
	if v.ablate == AblateFault {
		return nil
	}
	v.injected = append(v.injected, f) // before: half an injection is undone as well
	return f.Inject(ctx)
}

// tookHold asserts that a fault is there. What did not take hold ends the
// script: nothing that follows would prove anything.
func (v *variantRun) tookHold(ctx context.Context, f fault.Fault) error {
	held, saw, err := f.Held(ctx)
	if err != nil && (v.ablate == AblateFault || ctx.Err() != nil) {
		return fmt.Errorf("looking whether %q took hold: %w", f.Name, err)
	}
	if !held && v.ablate != AblateFault {
		err := v.clock.Until(ctx, f.Name+" to take hold", 100*time.Millisecond, heldWithin, f.Held)
		var timeout *await.TimeoutError
		if err != nil && !errors.As(err, &timeout) {
			return err
		}
		if held = err == nil; !held {
			saw = timeout.Saw
		}
	}
	if held {
		return nil
	}
	v.seen.held = fmt.Sprintf("%s: %s", f.Name, saw)
	v.ended = true
	return fmt.Errorf("%w: it did not take hold: %s", errNotAsExpected, saw)
}

// lesserForm injects a form of the incident that hurts nobody, and sees what
// the detectors make of it.
func (v *variantRun) lesserForm(form framework.LesserForm) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := v.stopGone(ctx); err != nil {
			return err
		}
		f := form.Fault(v.run)
		began := v.clock.Now()
		if err := v.inject(ctx, f); err != nil {
			return err
		}
		struck := v.clock.Now()
		if err := v.tookHold(ctx, f); err != nil {
			return err
		}
		judged := v.judgeForm(ctx, form, began, struck)
		if judged != nil && !errors.Is(judged, errNotAsExpected) {
			return judged
		}
		if back := v.takeBack(ctx, form, f); back != nil { // that it broke weighs more than what the form did
			if judged != nil {
				v.fail(form.Step() + ": " + judged.Error())
			}
			return back
		}
		return judged
	}
}

// judgeForm sees what came of a lesser form whose injection lasted from began
// to struck. An error that is not errNotAsExpected says why that is not known.
func (v *variantRun) judgeForm(ctx context.Context, form framework.LesserForm, began, struck time.Time) error {
	named := v.expectNamed(ctx, form.Named, struck, cmp.Or(form.Within, namedWithin))
	if named != nil && !errors.Is(named, errNotAsExpected) {
		return named
	}
	until := later(v.clock.Now(), struck.Add(formFor))
	if err := v.watchUntil(ctx, until); err != nil {
		return err
	}
	var wrong []string
	for _, c := range form.Aftermath {
		switch err := v.check(c)(ctx); {
		case errors.Is(err, errNotAsExpected):
			wrong = append(wrong, c.Name+": "+strings.TrimPrefix(err.Error(), errNotAsExpected.Error()+": "))
		case err != nil:
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	loud, err := v.formIsQuiet(ctx, form, struck)
	if err != nil {
		return err
	}
	if loud != "" {
		wrong = append(wrong, loud)
	}
	_, at := v.watch.now()
	v.keep("snapshot-"+slug(form.Name), at)
	for _, s := range v.watch.seen(began) {
		v.addFinding(s.Finding, form.Name, &s.at, new(s.at.Sub(began)), nil)
	}
	if alarms := v.alarms(struck, slices.Concat(form.Named, form.Passing)); len(alarms) > 0 {
		wrong = append(wrong, "nobody named "+framework.DescribeFindings(alarms))
	}
	if hurt, _ := v.hurt(v.cleanSince, until, anyProbe); len(hurt) > 0 {
		wrong = append(wrong, "hurt are "+strings.Join(hurt, ", ")+"; expected none")
	}
	for _, t := range v.probes.Timelines() {
		if few := tooFew(t, began, until); few != "" {
			return errors.New(few)
		}
	}
	if len(wrong) > 0 {
		return errors.Join(named, fmt.Errorf("%w: %s", errNotAsExpected, strings.Join(wrong, "; ")))
	}
	return named
}

// formIsQuiet says why the detectors are not quiet after a lesser form that
// names no alarm; empty where they are, or where it names one.
func (v *variantRun) formIsQuiet(ctx context.Context, form framework.LesserForm, struck time.Time) (string, error) {
	if slices.ContainsFunc(form.Named, func(f framework.Finding) bool { return f.State == detect.Active }) {
		return "", nil
	}
	_, err := v.watch.untilQuiet(ctx, struck, quietWithin+v.lookWithin(), form.Passing...)
	var blind *blindError
	var timeout *await.TimeoutError
	if !errors.As(err, &blind) && errors.As(err, &timeout) {
		return err.Error(), nil
	}
	return "", err
}

// takeBack undoes a lesser form that must be gone before the rest of the
// script runs.
func (v *variantRun) takeBack(ctx context.Context, form framework.LesserForm, f fault.Fault) error {
	if !form.TakenBack || v.ablate == AblateFault {
		return nil
	}
	if err := f.Undo(ctx); err != nil {
		return fmt.Errorf("taking it back: %w", err)
	}
	v.injected = v.injected[:len(v.injected)-1]
	if _, err := v.watch.untilQuiet(ctx, v.clock.Now(), quietWithin); err != nil {
		return fmt.Errorf("taken back, but %w", err)
	}
	return nil
}

// expectNamed waits for findings, in a look that began at or after a moment. With
// the detectors or the fault switched off there is nothing to wait for: the
// verdict tells.
func (v *variantRun) expectNamed(ctx context.Context, named []framework.Finding, since time.Time, within time.Duration) error {
	if len(named) == 0 || v.ablate == AblateDetector || v.ablate == AblateFault {
		return nil
	}
	err := v.watch.untilNamed(ctx, named, since, within+v.every()+v.reader.Timeout())
	var timeout *await.TimeoutError
	if errors.As(err, &timeout) {
		return fmt.Errorf("%w: %w", errNotAsExpected, err)
	}
	return err
}

// alarms are the active findings of the looks that began at or after a moment,
// but for the named ones.
func (v *variantRun) alarms(since time.Time, named []framework.Finding) []detect.Finding {
	var active []detect.Finding
	for _, s := range v.watch.seen(since) {
		if s.State == detect.Active {
			active = append(active, s.Finding)
		}
	}
	return framework.Unnamed(active, named...)
}

// stopGone stops the probes of the ends that the fault takes away.
func (v *variantRun) stopGone(ctx context.Context) error {
	var names []string
	for _, t := range v.probes.Timelines() {
		if v.isGone(t.Probe) && t.Stopped.IsZero() {
			names = append(names, t.Probe.Name)
		}
	}
	if len(names) == 0 { // to Stop, no name means all
		return nil
	}
	return v.stop(ctx, names...)
}

func (v *variantRun) isGone(p probe.Probe) bool {
	return slices.ContainsFunc(v.script.Gone, func(e framework.End) bool { return e.Name == p.From || e.Name == p.To })
}

func (v *variantRun) fault(ctx context.Context) error {
	if err := v.stopGone(ctx); err != nil {
		return err
	}
	defer v.raceBegins()()
	if err := v.meet(ctx, beforeFault); err != nil {
		return err
	}
	f := v.script.Fault(v.run)
	// What an earlier form has shown and is gone now would be news.
	findings, _ := v.watch.now()
	v.found = nil
	for _, f := range findings {
		v.found = append(v.found, keyOf(f))
	}
	v.faulted = v.clock.Now()
	v.result.Fault = &report.Fault{Began: v.faulted}
	if err := v.inject(ctx, f); err != nil {
		return err
	}
	v.struck = v.clock.Now()
	v.result.Fault.Struck = v.struck
	v.raceRan()
	if err := v.tookHold(ctx, f); err != nil {
		return err
	}
	return v.lookedSince(ctx, v.struck) // what follows looks at no older snapshot
}

// symptom waits until every probe of Hurt is hurt, or until it is known that
// they are not. Then there is nothing to detect and nothing to mend.
func (v *variantRun) symptom(ctx context.Context) error {
	hurt := namesOf(v.script.Hurt)
	bound := v.struck.Add(cmp.Or(v.script.HurtWithin, v.script.Observe))
	var names []string
	var onset time.Time
	for again := true; again; {
		_, err := v.probes.WaitOutage(ctx, hurt, v.faulted, v.script.HurtFor, max(time.Second, bound.Sub(v.clock.Now())))
		if ctx.Err() != nil || (err != nil && !errors.Is(err, probe.ErrBound)) {
			return err
		}
		// It must be known of each packet up to then whether it was lost.
		watched := v.clock.Now()
		if err := v.fateKnown(ctx, watched); err != nil {
			return err
		}
		names, onset = v.hurt(v.faulted, watched, v.isToBeHurt)
		// On a busy machine a packet that seemed to be lost may have been late, and
		// the symptom of its probe is still to come.
		again = err == nil && len(names) < len(hurt) && v.clock.Now().Before(bound)
	}
	v.keep("probes-after-fault", v.probes.Timelines())
	if !onset.IsZero() {
		v.result.Onset, v.result.ProbesHurt = new(v.onClock(onset)), names
	}
	if len(names) == len(hurt) {
		return nil
	}
	if len(names) == 0 && !v.classified() {
		err := v.observed(ctx)
		v.ended = true
		return err
	}
	what := fmt.Errorf("%w: hurt are %s; expected %s", errNotAsExpected, orNone(names), orNone(hurt))
	err := v.observed(ctx)
	v.ended = true
	if err != nil && !errors.Is(err, errNotAsExpected) {
		return err
	}
	return errors.Join(what, err)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// detected sees what the detectors made of the fault.
func (v *variantRun) detected(ctx context.Context) error {
	named := v.expectNamed(ctx, v.script.Named, v.struck, cmp.Or(v.script.NamedWithin, namedWithin))
	if named != nil && !errors.Is(named, errNotAsExpected) {
		return named
	}
	findings, at := v.watch.now()
	v.keep("snapshot-after-fault", at)
	v.keep(report.HistoryName, v.watch.told())
	if named != nil {
		v.seen.missing = list(framework.Missing(v.script.Named, findings))
		v.seen.blind = v.watch.blindSince(v.struck)
	}
	return named
}

// observed watches to the end of Observe, and sees what the whole time from the
// baseline on has shown: who was hurt, what the detectors said, and whether
// there was traffic enough to tell.
func (v *variantRun) observed(ctx context.Context) error {
	end := later(v.clock.Now(), v.struck.Add(v.script.Observe))
	if err := v.watchUntil(ctx, end); err != nil {
		return err
	}
	unhurt := !v.mayBeHurt() || v.result.Onset == nil
	if unhurt { // not before: the quiet time must reach to the end
		if err := v.fallsQuiet(ctx); err != nil {
			return err
		}
	}
	wrong := v.judgeTraffic(end)
	if few := v.tooFewRounds(); few != "" && v.seen.traffic == "" {
		v.seen.traffic = few
	}
	v.recordFindings()
	alarms := v.alarms(v.struck, slices.Concat(v.script.Named, v.script.Passing))
	if len(alarms) > 0 {
		wrong = append(wrong, "nobody named "+framework.DescribeFindings(alarms))
	}
	for _, why := range []string{v.seen.blind, v.seen.loud, v.seen.traffic} {
		if why != "" && unhurt {
			wrong = append(wrong, why)
		}
	}
	if unhurt && len(v.seen.hurt) == 0 {
		if err := v.asksWhetherItRefuses(ctx); err != nil {
			return err
		}
	}
	v.watched = true
	if verdict, _ := judge(v.seen); verdict != framework.Reproduced {
		v.ended = true // there is nothing to mend
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", errNotAsExpected, strings.Join(wrong, "; "))
	}
	return nil
}

// fallsQuiet sees whether the detectors say nothing but what is named, up to
// now, and notes it where they do not or where nobody knows.
func (v *variantRun) fallsQuiet(ctx context.Context) error {
	_, err := v.watch.untilQuiet(ctx, v.struck, max(quietWithin, v.script.NamedWithin)+v.lookWithin(), v.script.Named...)
	var blind *blindError
	var timeout *await.TimeoutError
	switch {
	case errors.As(err, &blind):
		v.seen.blind = err.Error()
	case errors.As(err, &timeout):
		v.seen.loud = err.Error()
	default:
		return err
	}
	return nil
}

// asksWhetherItRefuses notes what the component under test says if it does not
// start, for scripts that know how to find out.
func (v *variantRun) asksWhetherItRefuses(ctx context.Context) error {
	if v.script.Refuses == nil {
		return nil
	}
	said, err := v.script.Refuses(ctx, v.run)
	if err != nil {
		return fmt.Errorf("looking whether it refuses to start: %w", err)
	}
	v.seen.refuses, v.result.Refuses = said, said
	return nil
}

// judgeTraffic counts each probe's packets up to a moment, notes who was hurt,
// and says what was not as it must be.
func (v *variantRun) judgeTraffic(end time.Time) (wrong []string) {
	v.keep("probes-observed", v.probes.Timelines())
	_, at := v.watch.now()
	v.keep("snapshot-observed", at)
	v.keep(report.HistoryName, v.watch.told())
	v.result.Packets, v.result.Probes = report.Packets{}, nil
	for _, t := range v.probes.Timelines() {
		entry := countsOf(t, v.cleanSince, end)
		v.result.Packets.Sent += entry.Sent
		v.result.Packets.Lost += entry.Lost
		v.result.Probes = append(v.result.Probes, entry)
		for _, since := range []time.Time{v.faulted, v.struck} {
			v.seen.traffic = cmp.Or(v.seen.traffic, tooFew(t, since, end))
		}
	}
	v.seen.hurt, _ = v.hurt(v.faulted, end, v.isToBeHurt)
	v.seen.others, _ = v.hurt(v.cleanSince, end, func(p probe.Probe) bool { return !v.isToBeHurt(p) })
	early, _ := v.hurt(v.cleanSince, v.faulted, v.isToBeHurt)
	v.seen.others = append(v.seen.others, early...)
	v.result.ProbesHurt = append([]string{}, v.seen.hurt...)
	for _, name := range v.seen.others {
		if !slices.Contains(v.result.ProbesHurt, name) {
			v.result.ProbesHurt = append(v.result.ProbesHurt, name)
		}
	}
	if _, onset := v.hurt(v.faulted, end, anyProbe); v.result.Onset == nil && !onset.IsZero() {
		v.result.Onset = new(v.onClock(onset))
	}
	if len(v.seen.others) > 0 {
		wrong = append(wrong, "hurt as well are "+strings.Join(v.seen.others, ", "))
	}
	if !v.mayBeHurt() && len(v.seen.hurt) > 0 {
		wrong = append(wrong, "hurt are "+strings.Join(v.seen.hurt, ", ")+"; expected none")
	}
	return wrong
}

// recordFindings puts what was found since the fault into the report.
func (v *variantRun) recordFindings() {
	for _, s := range v.watch.seen(v.faulted) {
		v.addFinding(s.Finding, "fault", &s.at, new(s.at.Sub(v.faulted)), v.sinceOnset(s))
	}
	v.seen.active = len(v.alarms(v.struck, nil))
}

// sinceOnset is the time from the first lost probe to an alarm that came after
// it. Of another finding it would say nothing.
func (v *variantRun) sinceOnset(s sighting) *time.Duration {
	if v.result.Onset == nil || s.State != detect.Active || s.at.Before(*v.result.Onset) {
		return nil
	}
	return new(s.at.Sub(*v.result.Onset))
}

// addFinding puts a finding into the report, unless it is there. During is what
// it came with, at the moment of the finding and came the time from the beginning
// of that to it.
func (v *variantRun) addFinding(f detect.Finding, during string, at *time.Time, came, detected *time.Duration) {
	if slices.ContainsFunc(v.found, func(k findingKey) bool { return k == keyOf(f) }) {
		return
	}
	v.found = append(v.found, keyOf(f))
	v.result.Findings = append(v.result.Findings, report.Finding{
		Detector: f.Detector, Kind: f.Kind, State: string(f.State), Object: f.Object.String(),
		Owner: f.Owner, Announcer: f.Announcer, Routers: f.Routers, Pods: f.Pods, Says: f.Says,
		During: during, At: at, CameMS: milliseconds(came), TimeToDetectMS: milliseconds(detected),
	})
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	return new(d.Milliseconds())
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
