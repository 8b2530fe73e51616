package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
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
	baselineFor = quietFor
	// baselineWithin bounds the wait for it: an installation that is not well
	// a while after it said that it works is not well.
	baselineWithin = 30 * time.Second
	// recoveredFor is how long probes must be clean after a remedy.
	recoveredFor = time.Second
	// unhelpedFor is how long the symptom is watched after a remedy that is
	// not to help. Remedies that help take up to 13.6 s.
	unhelpedFor = 15 * time.Second
	// switchedOffFor is how long recovery is awaited from a remedy that is
	// switched off.
	switchedOffFor = 15 * time.Second
	// namedWithin bounds the wait for the detectors after the symptom, and after
	// a lesser form that sets no bound of its own.
	namedWithin = 5 * time.Second
	// quietWithin bounds the wait for quiet detectors where nothing is to be
	// found: what is settling has time to pass.
	quietWithin = 30 * time.Second
	// formFor is how long a lesser form is watched.
	formFor = 3 * time.Second
	// heldWithin bounds the wait until a fault has taken hold. Some are seen in
	// the next look alone.
	heldWithin = 5 * time.Second
	// fateWithin bounds the wait until every packet's fate is known. It is
	// probe.DefaultTimeout unless an agent does not get to run: one in a guest, beside
	// three that are busy, has reported nothing for half a minute.
	fateWithin = 45 * time.Second
	// relapsesWithin bounds the wait for the symptom after a remedy was undone.
	relapsesWithin = 30 * time.Second
)

// variantRun is one variant of a run.
type variantRun struct {
	scenario *Execution
	variant  framework.Variant
	// script is this run's own.
	script framework.Script
	// lane is where the run has its place beside those of other variants, and
	// number counts the runs of its variant from 0; lane is nil where variants run
	// one after the other.
	lane   *lane
	number int
	// label is what progress calls it: the variant's name, and the number of a
	// repeat.
	label  string
	result report.Variant
	// ablate is the part that is switched off, and mustChange whether the run
	// is there to see that the verdict changes.
	ablate     Part
	mustChange bool

	run      *framework.Run
	evidence Evidence
	// clock and tape are both the recorder, or where a stored run is judged again the
	// player, which is nil otherwise.
	clock    clock
	tape     tape
	recorder *recorder
	player   *player
	probes   probes
	live     atomic.Pointer[probe.Set] // those that run, for who looks from another goroutine
	agents   []*probe.Agent
	watch    *watch
	reader   Reader

	began      time.Time
	cleanSince time.Time          // when the baseline's clean time began
	racing     bool               // its race goes on; guarded by Execution.mu, as is raced
	raced      *framework.Outcome // of its race, when that is over
	injected   []fault.Fault      // to be undone, in reverse
	faulted    time.Time          // when the fault's injection began
	struck     time.Time          // when it was over
	seen       observation
	found      []findingKey // what the report has of the findings
	failures   int          // reasons that make the run fail
	watched    bool         // all that the verdict is made of was seen
	ended      bool         // the script ended, well or not: the verdict stands
	logged     bool         // the logs of the lab are kept
}

func newVariantRun(e *Execution, v framework.Variant) *variantRun {
	script := v.Script()
	if v.Role == framework.Unclassified {
		script.Latent, script.Forms, script.Aftermath, script.Remedies = nil, nil, nil, nil
	}
	if e.options.Wait > 0 && v.Role == framework.Affected {
		script.Remedies = slices.Insert(slices.Clone(script.Remedies), 0, waiting(e.options.Wait))
	}
	run := &variantRun{
		scenario: e, variant: v, label: v.Name, ablate: e.options.Ablate, recorder: &recorder{},
		seen: observation{expected: namesOf(script.Hurt), broken: errors.New("the variant did not run")},
		result: report.Variant{
			Name: v.Name, Role: string(v.Role), Components: v.Components, Form: string(v.Form), Labels: e.scenario.LabelsOf(v),
			Expected: string(v.Expected()), ProbesHurt: []string{}, Findings: []report.Finding{},
			Remedies: []report.Remedy{}, EvidenceDir: filepath.Join("evidence", v.Name),
			ToBeHurt: namesOf(script.Hurt), Ends: endsOf(script.Ends),
		},
	}
	run.tape, run.clock = run.recorder, run.recorder
	run.script = run.onTape(script)
	return run
}

// isPlayed makes the run that of a stored one.
func (v *variantRun) isPlayed(p *player) { v.clock, v.tape, v.player = p, p, p }

// probes are those of a variant. A *probe.Set is one.
type probes interface {
	Timelines() []probe.Timeline
	Timeline(name string) (probe.Timeline, error)
	WaitClean(ctx context.Context, names []string, window, bound time.Duration) (time.Time, error)
	WaitOutage(ctx context.Context, names []string, since time.Time, lasting, bound time.Duration) (time.Time, error)
	Stop(ctx context.Context, names ...string) error
}

// Calls on the tape that are the engine's own.
const (
	callStartProbes = "start probes"
	callStopProbes  = "stop probes"
	callOpen        = "open sources"
)

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
	v.step(fmt.Sprintf("baseline: %d probes clean and detectors quiet for %s%s", len(v.script.Probes), baselineFor, but(v.script.Latent)), v.baseline)
	for _, check := range v.script.Baseline {
		v.step(check.Before(), v.checkBaseline(check))
	}
	for _, form := range v.script.Forms {
		v.step(form.Step(), v.lesserForm(form))
	}
	v.step("fault", v.fault)
	hurt := strings.Join(namesOf(v.script.Hurt), ", ") + " are hurt"
	switch v.variant.Role {
	case framework.Affected:
		v.step("symptom: "+hurt, v.symptom)
	case framework.Unclassified:
		v.step("symptom, or none: "+hurt, v.symptom)
	}
	if len(v.script.Named) > 0 {
		v.step("detectors come to "+number(v.script.Named), v.detected)
	}
	for _, check := range v.script.Aftermath {
		v.step(check.After(), v.check(check))
	}
	v.step(v.observedText(), v.observed)
	for _, remedy := range v.script.Remedies {
		v.remedyStep(remedy)
	}
	// The verdict is a step of its own, so that it stands in every report; it
	// runs whatever happened before.
	v.add("verdict is "+cmp.Or(v.result.Expected, "what was seen"), v.verdict)
	v.add("lab is put back", v.restore)
}

// add plans a step: in the variant's lane, where it has one, and in any case
// among those of the execution.
func (v *variantRun) add(name string, do func(context.Context) error) {
	if v.lane != nil {
		do = v.lane.add(v.scenario.told(v.label, name, v.survives(do)))
	} else {
		do = v.scenario.told(v.label, name, do)
	}
	v.scenario.add(v.label, name, func(ctx context.Context) error {
		if v.player != nil { // a panic may be on record, and its context has an end there
			return v.survives(do)(v.player.ctx)
		}
		return do(ctx)
	})
}

// survives makes a panic of a step its error, as it is to a runner of steps: other
// variants are at work, and the lab is to go.
func (v *variantRun) survives(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		defer func() {
			if p := recover(); p != nil {
				v.keep("panic", debug.Stack())
				err = fmt.Errorf("panic: %v", p)
				v.seen.broken, v.ended = err, true
				v.fail(err.Error()) // the verdict may stand already
			}
		}()
		return do(ctx)
	}
}

// isBroken tells whether there is nothing that the variant could run on.
func (v *variantRun) isBroken() bool {
	return v.scenario.Broken() != nil || v.lane != nil && v.lane.broken != nil
}

// others are nodes of the lab that other variants have for themselves.
func (v *variantRun) others() []string {
	var nodes []string
	for _, other := range v.scenario.scenario.Variants {
		if other.Name != v.variant.Name {
			nodes = append(nodes, other.Nodes...)
		}
	}
	return nodes
}

// but says how many findings a quiet time is to have.
func but(named []framework.Finding) string {
	if len(named) == 0 {
		return ""
	}
	return ", but for " + number(named)
}

func number(findings []framework.Finding) string {
	if len(findings) == 1 {
		return "one finding"
	}
	return fmt.Sprintf("%d findings", len(findings))
}

func list(findings []framework.Finding) string {
	var names []string
	for _, f := range findings {
		names = append(names, f.String())
	}
	return strings.Join(names, "; ")
}

// classified tells whether it is known what the variant must come to. What is not
// as it would be in an affected one, or a fixed one, is no failure of another.
func (v *variantRun) classified() bool { return v.variant.Role != framework.Unclassified }

// mayBeHurt tells whether the incident's symptom is looked for.
func (v *variantRun) mayBeHurt() bool { return v.variant.Role == framework.Affected || !v.classified() }

func (v *variantRun) observedText() string {
	if v.mayBeHurt() {
		return fmt.Sprintf("nothing else is hurt and no other alarm raised, %s from the fault at least", v.script.Observe)
	}
	return fmt.Sprintf("no probe is hurt, %s from the fault at least, and detectors are quiet for %s", v.script.Observe, quietFor)
}

// errNotAsExpected marks an observation that counts for the verdict or the
// list of reasons. It is not a breakdown: the script may go on.
var errNotAsExpected = errors.New("not as expected")

// step plans one step. One that breaks makes the verdict unknown and ends the
// script; one that only sees something unexpected adds a reason.
func (v *variantRun) step(name string, do func(context.Context) error) {
	v.addStep(name, do, func(ctx context.Context, err error) {
		v.seen.broken = fmt.Errorf("%s: %w", name, err)
		v.ended = true
	})
}

// addStep plans one step, and what follows if it breaks.
func (v *variantRun) addStep(name string, do func(context.Context) error, broke func(context.Context, error)) {
	v.add(name, func(ctx context.Context) error {
		switch {
		case v.isBroken():
			return &Skipped{"there is no lab"}
		case v.ended:
			return &Skipped{"an earlier step ended the script"}
		case !v.begins(name):
			return v.notOnRecord(name)
		}
		v.publish()
		done := v.scenario.beginStep(v.label, name)
		err := do(ctx)
		v.recordProbes()
		v.tape.ends(name, ctx.Err() != nil)
		v.scenario.loses(v.recorder.failed())
		noFailure := v.mustChange || !v.classified()
		if noFailure && errors.Is(err, errNotAsExpected) {
			done(nil)
		} else {
			done(err)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errNotAsExpected):
			v.fail(name + ": " + err.Error())
			if noFailure { // it is what a run without a part, or of any version, is there for
				v.scenario.options.Progress.Note(v.label, err.Error())
				return nil
			}
		default:
			broke(ctx, err)
			v.result.Reasons = append(v.result.Reasons, name+": "+err.Error())
		}
		v.keepFailure(context.WithoutCancel(ctx))
		return err
	})
}

// begins begins a step, and with the first one the record.
func (v *variantRun) begins(step string) bool {
	if v.player == nil && v.began.IsZero() {
		v.recorder.open(v.evidence.Dir, v.scenario.began, beginEntry{
			Schema: recordSchema, Scenario: v.scenario.scenario.Incident.Name, Variant: v.variant.Name, Label: v.label,
			Parameters: v.scenario.options.Parameters, Versions: v.scenario.options.Versions, Wait: v.scenario.options.Wait,
			Brief: v.scenario.options.Brief,
		})
	}
	return v.tape.begins(step)
}

// notOnRecord ends the script where a stored run has not come to a step, although
// today's engine would: what would have come of it nobody knows.
func (v *variantRun) notOnRecord(step string) error {
	v.ended = true
	why := fmt.Errorf("%s: %w", step, errNotOnRecord)
	if !v.watched {
		v.seen.broken = why
	}
	for _, r := range v.script.Remedies[len(v.result.Remedies):] {
		entry := v.remedyEntry(r)
		entry.Verdict, entry.Reason = notJudged, errNotOnRecord.Error()
		v.result.Remedies = append(v.result.Remedies, entry)
	}
	return &Skipped{why.Error()}
}

// fail adds a reason that makes the run fail, whatever its verdict.
func (v *variantRun) fail(reason string) {
	v.failures++
	v.result.Reasons = append(v.result.Reasons, reason)
}

func (v *variantRun) install(ctx context.Context) error {
	if err := v.meet(ctx, toInstall); err != nil {
		return err
	}
	v.began = v.clock.Now()
	v.result.Began = new(v.began)
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
		Rounds:   v.rounds,
		Meet:     func(ctx context.Context) error { return v.meet(ctx, inFault) },
		Evidence: v.keep,
		Note:     func(text string) { v.scenario.options.Progress.Note(v.label, text) },
	}
	v.scenario.lab.Attach(v.run)
	err := v.script.Install(ctx, v.run)
	if err != nil && !v.classified() && ctx.Err() == nil {
		// What is installed may be what refuses.
		if asked := v.asksWhetherItRefuses(ctx); asked == nil && v.seen.refuses != "" {
			v.ended = true
			return fmt.Errorf("%w: %s", errNotAsExpected, v.seen.refuses)
		}
	}
	return err
}

// onClock is a time that a probe tells on the clock of the run (Execution.now).
func (v *variantRun) onClock(t time.Time) time.Time {
	if v.player != nil || v.scenario.began.IsZero() {
		return t // as it was stored, or nothing has begun
	}
	return v.scenario.began.Add(t.Sub(v.scenario.began))
}

// loses ends the run because something of it cannot be stored.
func (v *variantRun) loses(err error) {
	v.result.Reasons = append(v.result.Reasons, err.Error())
	v.scenario.loses(err)
}

// keep stores evidence.
func (v *variantRun) keep(name string, data any) {
	if err := v.evidence.Write(name, data); err != nil {
		v.loses(err)
	}
}

// startProbes dials the ends and starts the probes between those of them
// that are there.
func (v *variantRun) startProbes(ctx context.Context, without ...framework.End) error {
	err := v.tape.call(ctx, callStartProbes, func(ctx context.Context) answer {
		return answer{err: v.dial(ctx, without)}
	}).err
	if v.player != nil && err == nil {
		v.probes = v.player.set()
	}
	return err
}

func (v *variantRun) dial(ctx context.Context, without []framework.End) error {
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
	set, err := probe.New(ends, probes)
	if err != nil {
		return err
	}
	v.probes = recordedSet{set, v.recorder}
	v.live.Store(set)
	return set.Start(ctx)
}

// stop stops the named probes, or all of them without a name.
func (v *variantRun) stop(ctx context.Context, names ...string) error {
	return v.tape.call(ctx, callStopProbes, func(ctx context.Context) answer {
		return answer{err: v.probes.Stop(ctx, names...)}
	}).err
}

// stopProbes keeps what the probes saw, and frees their agents.
func (v *variantRun) stopProbes(ctx context.Context) error {
	var err error
	if v.probes != nil { // else not all ends could be dialled
		err = v.stop(ctx)
		v.recordProbes()
		v.keep("probes", v.probes.Timelines())
	}
	for _, a := range v.agents {
		err = errors.Join(err, a.Close())
	}
	v.probes, v.agents = nil, nil
	v.live.Store(nil)
	return err
}

// recordProbes puts what is known of the packets into the record.
func (v *variantRun) recordProbes() {
	if v.player == nil && v.probes != nil {
		v.recorder.probes(v.probes.Timelines())
	}
}

func (v *variantRun) startWatch(ctx context.Context) error {
	opened := v.tape.call(ctx, callOpen, func(ctx context.Context) answer {
		reader, err := v.scenario.lab.Open(ctx, v.script.Reads(), v.others())
		if err != nil {
			return answer{err: err}
		}
		v.reader = reader
		return answer{Timeout: reader.Timeout()}
	})
	if opened.err != nil {
		return opened.err
	}
	detectors := v.script.Detectors
	if v.ablate == AblateDetector {
		detectors = nil
	}
	var watch *watch
	if within := (scope{v.variant.Nodes, v.others()}); v.player != nil {
		v.reader = storedReader{opened.Timeout}
		watch = v.player.watching(detectors, v.every(), within)
	} else {
		watch = startWatch(v.reader.Collect, detectors, v.every(), within, v.recorder, v.newNews().look)
	}
	v.watch = watch
	// An undo may look at the last of them when v.watch has ended.
	v.run.Snapshot = func() snapshot.Snapshot { _, at := watch.now(); return at }
	v.run.Findings = func() []detect.Finding { findings, _ := watch.now(); return findings }
	return nil
}

// check asserts a fact of the incident. One whose last look failed is not known
// to be wrong: that breaks the run.
func (v *variantRun) check(c framework.Check) func(context.Context) error {
	return func(ctx context.Context) error {
		if c.AsksDetectors && v.ablate == AblateDetector {
			return nil
		}
		var failed error
		look := func(ctx context.Context) (holds bool, saw string, err error) {
			holds, saw, err = c.Holds(ctx, v.run)
			if ctx.Err() == nil { // a look that the bound cut short tells nothing new
				failed = err
			}
			return holds, saw, err
		}
		// The first look is not under the bound: where that is zero, it would
		// have no time to look at all.
		holds, saw, _ := look(ctx)
		if !holds && c.Bound > 0 {
			err := v.clock.Until(ctx, c.Name, 100*time.Millisecond, c.Bound, look)
			var timeout *await.TimeoutError
			if err != nil && !errors.As(err, &timeout) {
				return err
			}
			if holds = err == nil; !holds {
				saw = timeout.Saw
			}
		}
		switch {
		case holds:
			v.result.Checks = append(v.result.Checks, report.Check{Name: c.Name, Holds: true})
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("looking whether %s: %w", c.Name, ctx.Err())
		case failed != nil:
			v.result.Checks = append(v.result.Checks, report.Check{Name: c.Name, Reason: "not known: " + failed.Error()})
			return fmt.Errorf("not known: %w", failed)
		}
		v.result.Checks = append(v.result.Checks, report.Check{Name: c.Name, Reason: saw})
		return fmt.Errorf("%w: %s", errNotAsExpected, saw)
	}
}

// look asks a check what a look shows that began after the check did, and that has read
// all that the check reads: an older one shows what was before, and what was not read
// is not missing. Where there is no such look the fact is not known.
func (v *variantRun) look(ctx context.Context, c framework.Check, r *framework.Run) (holds bool, saw string, err error) {
	if len(c.Reads) == 0 {
		return c.Holds(ctx, r)
	}
	began := v.clock.Now()
	var at snapshot.Snapshot
	err = await.Until(ctx, "a look that shows whether "+c.Name, v.every()/4, v.lookWithin()+slowLooks, func(context.Context) (bool, string, error) {
		at = r.Snapshot().Only(c.Reads...)
		if at.Time.Before(began) {
			return false, "none has begun since", nil
		}
		unread := at.Unread()
		return len(unread) == 0, strings.Join(unread, "; "), nil
	})
	if err != nil {
		return false, "", err
	}
	seen := *r
	seen.Snapshot = func() snapshot.Snapshot { return at }
	return c.Holds(ctx, &seen)
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
