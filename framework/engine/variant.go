package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// baselineFor is how long all must be well before the fault.
	baselineFor = 5 * time.Second
	// baselineWithin bounds the wait for it: an installation that is not well
	// a while after it said that it works is not well.
	baselineWithin = 30 * time.Second
	// recoveredFor is how long probes must be clean after a remedy.
	recoveredFor = time.Second
	// unhelpedFor is how long the symptom is watched after a remedy that is
	// not to help.
	unhelpedFor = 3 * time.Second
	// namedWithin bounds the wait for the detectors after the symptom, and after
	// a lesser form that sets no bound of its own.
	namedWithin = 5 * time.Second
	// takenBackWithin bounds the wait for silent detectors after a lesser form
	// was taken back.
	takenBackWithin = 30 * time.Second
	// fateWithin bounds the wait until every packet's fate is known. It is
	// probe.DefaultTimeout unless an agent does not get to run.
	fateWithin = 15 * time.Second
	// relapsesWithin bounds the wait for the symptom after a remedy was undone.
	relapsesWithin = 30 * time.Second
)

// variantRun is one variant of a run.
type variantRun struct {
	scenario *Execution
	variant  framework.Variant
	// script is this run's own.
	script framework.Script
	// label is what progress calls it: the variant's name, and the number of a
	// repeat.
	label  string
	result report.Variant

	run      *framework.Run
	evidence evidence
	probes   *probe.Set
	agents   []*probe.Agent
	watch    *watch
	reader   Reader

	began      time.Time
	cleanSince time.Time     // when the baseline's clean time began
	injected   []fault.Fault // to be undone, in reverse
	faulted    time.Time     // when the fault's injection began
	seen       observation
	ended      bool // the script ended, well or not: the verdict stands
	logged     bool // the logs of the lab are kept
}

func newVariantRun(e *Execution, v framework.Variant) *variantRun {
	script := v.Script()
	return &variantRun{
		scenario: e, variant: v, script: script, label: v.Name,
		seen: observation{expected: namesOf(script.Hurt), broken: errors.New("the variant did not run")},
		result: report.Variant{
			Name: v.Name, Role: string(v.Role), Components: v.Components, Form: string(v.Form),
			Expected: string(v.Expected()), ProbesHurt: []string{}, Findings: []report.Finding{},
			Remedies: []report.Remedy{}, EvidenceDir: filepath.Join("evidence", v.Name),
		},
	}
}

// namesOf are the names of probes, as timelines bear them.
func namesOf(probes []probe.Probe) []string {
	var names []string
	for _, p := range probes {
		names = append(names, p.WithDefaults().Name)
	}
	return names
}

// plan adds the variant's steps, in the order in which they run.
func (v *variantRun) plan() {
	v.step("components are installed", v.install)
	v.step(fmt.Sprintf("baseline: %d probes clean for %s, detectors quiet", len(v.script.Probes), baselineFor), v.baseline)
	for _, check := range v.script.Baseline {
		v.step("before: "+check.Name, v.checkBaseline(check))
	}
	for _, form := range v.script.Forms {
		v.step("lesser form: "+form.Name, v.lesserForm(form))
	}
	v.step("fault", v.fault)
	v.step(v.symptomText(), v.symptom)
	v.step("detectors say what they must", v.detected)
	for _, check := range v.script.Aftermath {
		v.step("after: "+check.Name, v.check(check))
	}
	for _, remedy := range v.script.Remedies {
		v.step(remedyText(remedy), v.remedy(remedy))
	}
	// The verdict is a step of its own, so that it stands in every report; it
	// runs whatever happened before.
	v.scenario.add(v.label, "verdict is "+string(v.variant.Expected()), v.verdict)
	v.scenario.add(v.label, "lab is put back", v.restore)
}

func (v *variantRun) symptomText() string {
	if v.variant.Role == framework.Affected {
		return "symptom: " + strings.Join(namesOf(v.script.Hurt), ", ") + " are hurt, and nothing else"
	}
	return "no probe is hurt"
}

func remedyText(r framework.Remedy) string {
	if r.Helps {
		return "remedy: " + r.Name
	}
	return "no remedy: " + r.Name
}

// errNotAsExpected marks an observation that counts for the verdict or the
// list of reasons. It is not a breakdown: the script may go on.
var errNotAsExpected = errors.New("not as expected")

// step plans one step. One that breaks makes the verdict unknown and ends the
// script; one that only sees something unexpected adds a reason.
func (v *variantRun) step(name string, do func(context.Context) error) {
	v.scenario.add(v.label, name, func(ctx context.Context) error {
		switch {
		case v.scenario.broken != nil:
			return &Skipped{"there is no lab"}
		case v.ended:
			return &Skipped{"an earlier step ended the script"}
		}
		done := v.scenario.options.Progress.Step(v.label, name)
		err := do(ctx)
		done(err)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNotAsExpected) {
			v.seen.broken = fmt.Errorf("%s: %w", name, err)
			v.ended = true
		}
		v.result.Reasons = append(v.result.Reasons, name+": "+err.Error())
		v.keepFailure(context.WithoutCancel(ctx))
		return err
	})
}

func (v *variantRun) install(ctx context.Context) error {
	v.began = time.Now()
	v.seen.broken = nil
	v.run = &framework.Run{
		Began:    v.began,
		Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{} },
		Findings: func() []detect.Finding { return nil },
		Timelines: func() []probe.Timeline {
			if v.probes == nil {
				return nil
			}
			return v.probes.Timelines()
		},
		Evidence: v.keep,
		Note:     func(text string) { v.scenario.options.Progress.Note(v.label, text) },
	}
	v.scenario.lab.Attach(v.run)
	return v.script.Install(ctx, v.run)
}

// keep stores evidence. What cannot be stored is a reason not to trust the
// run, and not one to end it.
func (v *variantRun) keep(name string, data any) {
	if err := v.evidence.write(name, data); err != nil {
		v.result.Reasons = append(v.result.Reasons, err.Error())
	}
}

// startProbes dials the ends and starts the probes between those of them
// that are there.
func (v *variantRun) startProbes(ctx context.Context, without ...framework.End) error {
	gone := func(name string) bool {
		return slices.ContainsFunc(without, func(e framework.End) bool { return e.Name == name })
	}
	there := slices.DeleteFunc(slices.Clone(v.script.Ends), func(e framework.End) bool { return gone(e.Name) })
	probes := slices.DeleteFunc(slices.Clone(v.script.Probes), func(p probe.Probe) bool { return gone(p.From) || gone(p.To) })
	ends, err := v.scenario.lab.Dial(ctx, v.run, there)
	for _, e := range ends {
		if e.Agent != nil { // else it only answers
			v.agents = append(v.agents, e.Agent)
		}
	}
	if err != nil {
		return err
	}
	if v.probes, err = probe.New(ends, probes); err != nil {
		return err
	}
	return v.probes.Start(ctx)
}

// stopProbes keeps what the probes saw, and frees their agents.
func (v *variantRun) stopProbes(ctx context.Context) error {
	var err error
	if v.probes != nil { // else not all ends could be dialled
		err = v.probes.Stop(ctx)
		v.keep("probes", v.probes.Timelines())
	}
	for _, a := range v.agents {
		err = errors.Join(err, a.Close())
	}
	v.probes, v.agents = nil, nil
	return err
}

func (v *variantRun) baseline(ctx context.Context) error {
	if err := v.startProbes(ctx); err != nil {
		return err
	}
	if err := v.startWatch(ctx); err != nil {
		return err
	}
	v.result.Baseline.Probes = len(v.script.Probes)
	since, err := v.probes.WaitClean(ctx, nil, baselineFor, baselineWithin)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		return v.badBaseline(err.Error())
	}
	now := time.Now()
	v.cleanSince = since
	v.result.Baseline.Seconds = now.Sub(since).Seconds()
	for _, t := range v.probes.Timelines() {
		v.result.Baseline.Lost += t.Between(since, now).Lost
	}
	// The first looks may have seen the installation settle; the last one
	// must not see anything.
	if err := v.watch.until(ctx, "a look of the detectors", v.lookWithin(), func([]detect.Finding) bool { return true }); err != nil {
		return err
	}
	findings, at := v.watch.now()
	v.keep("snapshot-baseline", at)
	for _, f := range findings {
		v.addFinding(f, nil)
		if f.State == detect.Active || !slices.Contains(v.script.Latent, f.Kind) {
			return v.badBaseline("the detectors are not quiet: " + f.Says)
		}
	}
	if unread := at.Unread(); len(unread) > 0 {
		return v.badBaseline("not everything can be read: " + strings.Join(unread, "; "))
	}
	return nil
}

// lookWithin bounds the wait for what the next look of the detectors will show:
// that look may begin late and end late.
func (v *variantRun) lookWithin() time.Duration {
	return namedWithin + 2*(v.every()+v.reader.Timeout())
}

// every is the time from one look of the detectors to the next.
func (v *variantRun) every() time.Duration { return cmp.Or(v.script.LookEvery, lookEvery) }

// badBaseline ends the script: what comes after a bad baseline proves
// nothing.
func (v *variantRun) badBaseline(why string) error {
	v.seen.baseline = why
	v.ended = true
	return fmt.Errorf("%w: %s", errNotAsExpected, why)
}

func (v *variantRun) startWatch(ctx context.Context) error {
	reader, err := v.scenario.lab.Open(ctx, v.script.Reads())
	if err != nil {
		return err
	}
	v.reader = reader
	detectors := v.script.Detectors
	if v.scenario.options.Ablate == AblateDetector {
		detectors = nil
	}
	watch := startWatch(reader.Collect, detectors, v.every())
	v.watch = watch
	// An undo may look at the last of them when v.watch has ended.
	v.run.Snapshot = func() snapshot.Snapshot { _, at := watch.now(); return at }
	v.run.Findings = func() []detect.Finding { findings, _ := watch.now(); return findings }
	return nil
}

// check asserts a fact of the incident.
func (v *variantRun) check(c framework.Check) func(context.Context) error {
	return func(ctx context.Context) error {
		if c.AsksDetectors && v.scenario.options.Ablate == AblateDetector {
			return nil
		}
		// The first look is not under the bound: where that is zero, it would
		// have no time to look at all.
		holds, saw, err := c.Holds(ctx, v.run)
		if err != nil {
			saw = err.Error()
		}
		if !holds && c.Bound > 0 {
			err := await.Until(ctx, c.Name, 100*time.Millisecond, c.Bound, func(ctx context.Context) (bool, string, error) {
				return c.Holds(ctx, v.run)
			})
			var timeout *await.TimeoutError
			if err != nil && !errors.As(err, &timeout) {
				return err
			}
			if holds = err == nil; !holds {
				saw = timeout.Saw
			}
		}
		if holds {
			v.result.Checks = append(v.result.Checks, report.Check{Name: c.Name, Holds: true})
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("looking whether %s: %w", c.Name, ctx.Err())
		}
		v.result.Checks = append(v.result.Checks, report.Check{Name: c.Name, Reason: saw})
		return fmt.Errorf("%w: %s", errNotAsExpected, saw)
	}
}

// checkBaseline asserts a fact without which the fault would prove nothing.
func (v *variantRun) checkBaseline(c framework.Check) func(context.Context) error {
	return func(ctx context.Context) error {
		err := v.check(c)(ctx)
		if errors.Is(err, errNotAsExpected) {
			v.seen.baseline = c.Name + ": " + err.Error()
			v.ended = true
		}
		return err
	}
}

// inject makes a fault happen, unless faults are switched off, and notes it
// for the undo.
func (v *variantRun) inject(ctx context.Context, f fault.Fault) error {
	if v.scenario.options.Ablate == AblateFault {
		return nil
	}
	v.injected = append(v.injected, f) // before: half an injection is undone as well
	return f.Inject(ctx)
}

// lesserForm injects a form of the incident that hurts nobody, and sees what
// the detectors make of it.
func (v *variantRun) lesserForm(form framework.LesserForm) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := v.stopGone(ctx); err != nil {
			return err
		}
		began := time.Now()
		f := form.Fault(v.run)
		if err := v.inject(ctx, f); err != nil {
			return err
		}
		if err := v.expectNamed(ctx, form.Named, cmp.Or(form.Within, namedWithin)); err != nil {
			return err
		}
		findings, at := v.watch.now()
		v.keep("snapshot-lesser-form", at)
		for _, f := range findings {
			v.addFinding(f, &began)
		}
		if err := v.expectUnhurt(ctx, began); err != nil {
			return err
		}
		return v.takeBack(ctx, form, f)
	}
}

// expectUnhurt asserts that no probe was lost since a moment.
func (v *variantRun) expectUnhurt(ctx context.Context, since time.Time) error {
	until := time.Now()
	if err := v.fateKnown(ctx, until); err != nil {
		return err
	}
	if hurt, _ := v.hurt(since, until); len(hurt) > 0 {
		return fmt.Errorf("%w: hurt are %s; expected none", errNotAsExpected, strings.Join(hurt, ", "))
	}
	return nil
}

// takeBack undoes a lesser form that must be gone before the rest of the
// script runs.
func (v *variantRun) takeBack(ctx context.Context, form framework.LesserForm, f fault.Fault) error {
	if !form.TakenBack || v.scenario.options.Ablate == AblateFault {
		return nil
	}
	if err := f.Undo(ctx); err != nil {
		return fmt.Errorf("taking it back: %w", err)
	}
	v.injected = v.injected[:len(v.injected)-1]
	if err := v.watch.untilQuiet(ctx, takenBackWithin); err != nil {
		return fmt.Errorf("taken back, but %w", err)
	}
	return nil
}

// fateKnown waits until it is known of each packet up to a moment whether it
// was lost.
func (v *variantRun) fateKnown(ctx context.Context, until time.Time) error {
	return await.Until(ctx, "the last packets' fate", 50*time.Millisecond, fateWithin,
		func(context.Context) (bool, string, error) {
			for _, t := range v.probes.Timelines() {
				if !t.Known(until) {
					return false, t.String(), nil
				}
			}
			return true, "", nil
		})
}

// hurt names the probes that were hurt in a time, but for those whose ends the
// fault takes away, and tells when the first packet was lost.
func (v *variantRun) hurt(since, until time.Time) (names []string, onset time.Time) {
	for _, t := range v.probes.Timelines() {
		first, out := t.FirstOutage(since, v.script.HurtFor)
		if v.isGone(t.Probe) || !out || !first.At.Before(until) {
			continue
		}
		names = append(names, t.Probe.Name)
		if onset.IsZero() || first.At.Before(onset) {
			onset = first.At
		}
	}
	return names, onset
}

// expectNamed waits for findings. With the detectors or the fault switched
// off there is nothing to wait for: the verdict tells.
func (v *variantRun) expectNamed(ctx context.Context, named []framework.Finding, within time.Duration) error {
	if v.scenario.options.Ablate == AblateDetector || v.scenario.options.Ablate == AblateFault {
		return nil
	}
	err := v.watch.untilNamed(ctx, named, within)
	var timeout *await.TimeoutError
	if errors.As(err, &timeout) {
		return fmt.Errorf("%w: %w", errNotAsExpected, err)
	}
	return err
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
	return v.probes.Stop(ctx, names...)
}

func (v *variantRun) isGone(p probe.Probe) bool {
	return slices.ContainsFunc(v.script.Gone, func(e framework.End) bool { return e.Name == p.From || e.Name == p.To })
}

func (v *variantRun) fault(ctx context.Context) error {
	if err := v.stopGone(ctx); err != nil {
		return err
	}
	f := v.script.Fault(v.run)
	v.watch.forget()
	v.faulted = time.Now()
	if err := v.inject(ctx, f); err != nil {
		return err
	}
	held, saw, err := f.Held(ctx)
	if err != nil {
		return err
	}
	if !held {
		v.seen.held = saw
		v.ended = true
		return fmt.Errorf("%w: the fault did not take hold: %s", errNotAsExpected, saw)
	}
	return nil
}

// symptom watches the traffic after the fault.
func (v *variantRun) symptom(ctx context.Context) error {
	script := v.script
	// The watching ends when every probe of Hurt is hurt, or after Observe.
	_, err := v.probes.WaitOutage(ctx, namesOf(script.Hurt), v.faulted, script.HurtFor, script.Observe)
	if ctx.Err() != nil || (err != nil && !errors.Is(err, probe.ErrBound)) {
		return err
	}
	// It must be known of each packet up to then whether it was lost.
	watched := time.Now()
	if err := v.fateKnown(ctx, watched); err != nil {
		return err
	}
	for _, t := range v.probes.Timelines() {
		counts := t.Between(v.cleanSince, watched)
		v.result.Packets.Sent += counts.Sent
		v.result.Packets.Lost += counts.Lost
	}
	var onset time.Time
	v.seen.hurt, onset = v.hurt(v.faulted, watched)
	v.keep("probes-after-fault", v.probes.Timelines())
	v.result.ProbesHurt = append(v.result.ProbesHurt, v.seen.hurt...)
	if !onset.IsZero() {
		v.result.Onset = &onset
	}
	expected := namesOf(script.Hurt)
	if v.variant.Role != framework.Affected {
		expected = nil
	}
	slices.Sort(v.seen.hurt)
	expected = slices.Sorted(slices.Values(expected))
	if !slices.Equal(v.seen.hurt, expected) {
		return fmt.Errorf("%w: hurt are %s; expected %s", errNotAsExpected, orNone(v.seen.hurt), orNone(expected))
	}
	return nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// detected sees what the detectors made of the fault.
func (v *variantRun) detected(ctx context.Context) error {
	script := v.script
	var named error
	if v.variant.Role == framework.Affected {
		named = v.expectNamed(ctx, script.Named, cmp.Or(script.NamedWithin, namedWithin))
	} else {
		named = v.watch.untilQuiet(ctx, v.lookWithin())
	}
	if ctx.Err() != nil {
		return named
	}
	_, at := v.watch.now()
	v.keep("snapshot-after-fault", at)
	since := v.faulted
	if v.result.Onset != nil {
		since = *v.result.Onset
	}
	for _, s := range v.watch.seen() {
		if s.State == detect.Latent {
			v.addFindingAt(s, v.faulted) // it comes before anything is lost
			continue
		}
		v.addFindingAt(s, since)
		if s.State == detect.Active {
			v.seen.active++
		}
	}
	if named != nil && !errors.Is(named, errNotAsExpected) {
		named = fmt.Errorf("%w: %w", errNotAsExpected, named)
	}
	if named == nil && v.variant.Role == framework.Affected && v.seen.active == 0 {
		named = fmt.Errorf("%w: no detector said a word", errNotAsExpected)
		v.ended = true // no remedy can silence what says nothing
	}
	return named
}

func (v *variantRun) addFinding(f detect.Finding, since *time.Time) {
	entry := report.Finding{
		Detector: f.Detector, Kind: f.Kind, State: string(f.State), Object: f.Object.String(),
		Owner: f.Owner, Announcer: f.Announcer, Routers: f.Routers, Pods: f.Pods, Says: f.Says,
	}
	if since != nil {
		ms := time.Since(*since).Milliseconds()
		entry.TimeToDetectMS = &ms
	}
	known := slices.ContainsFunc(v.result.Findings, func(k report.Finding) bool {
		return k.Detector == entry.Detector && k.Kind == entry.Kind && k.Object == entry.Object && k.State == entry.State &&
			k.Announcer == entry.Announcer
	})
	if !known {
		v.result.Findings = append(v.result.Findings, entry)
	}
}

func (v *variantRun) addFindingAt(s sighting, since time.Time) {
	before := len(v.result.Findings)
	v.addFinding(s.Finding, nil)
	if len(v.result.Findings) > before {
		// The layers may disagree before the first packet is lost.
		ms := max(0, s.at.Sub(since).Milliseconds())
		v.result.Findings[before].TimeToDetectMS = &ms
	}
}
