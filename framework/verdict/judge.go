package verdict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
)

// Judge judges a case by its history, step by step. What it comes to depends on these
// two alone, and on Setting.
type Judge struct {
	Case
	Setting
	// Result is what the case has come to so far.
	Result report.Variant

	h    *history.History
	seen observation

	began        time.Time
	cleanSince   time.Time   // when the baseline's clean time began
	faulted      time.Time   // when the fault's injection began
	injected     time.Time   // when it was over
	found        []detect.ID // the findings that the result has
	failures     int         // reasons that make the run fail
	complete     bool        // all that the verdict is made of was seen
	ended        bool        // the script ended, well or not: the verdict stands
	trialOutcome *framework.Outcome
	missing      []framework.StepID // steps that the history lacks
}

// Setting is what a verdict depends on besides the variant's own history.
type Setting struct {
	// Accelerator is that of the lab's guests; empty where there are none.
	Accelerator string
	// Due is how many trials an unaffected variant must stand, as far as is known from
	// the affected ones beside it. Nil: as many as the recorded rates ask for.
	Due func() int
}

// NewJudge makes a judge of a case that nothing has happened to yet.
func NewJudge(c Case, h *history.History, s Setting, labels []string) *Judge {
	j := &Judge{Case: c, Setting: s, h: h}
	j.seen = observation{expected: c.Impacted(), broken: errors.New("the variant did not run")}
	j.Result = report.Variant{
		Name: c.Variant.Name, Role: string(c.Variant.Role), Components: c.Variant.Components, Form: string(c.Variant.Form), Labels: labels,
		Expected: string(c.Expected), Ablated: string(c.Ablate), ProbesHurt: []string{}, Findings: []report.Finding{},
		Remedies: []report.Remedy{}, EvidenceDir: c.Evidence, ToBeHurt: c.Impacted(), Ends: endpointsOf(c.Script.Endpoints),
	}
	return j
}

// endsOf are the endpoints of probes, as a report holds them.
func endpointsOf(declared []framework.Endpoint) []report.End {
	var ends []report.End
	for _, d := range declared {
		on := d.Host
		if d.Pod != nil {
			on = d.Pod.Node
		}
		ends = append(ends, report.End{Name: d.Name, On: on})
	}
	return ends
}

// ErrNotAsExpected marks an observation that counts for the verdict or the list of
// reasons. It is no breakdown: the script may go on.
var ErrNotAsExpected = errors.New("not as expected")

// ErrNotOnRecord is why something cannot be judged that today's relapse would do, and
// the stored run did not.
var ErrNotOnRecord = errors.New("the stored run has no record of it")

// Ended tells whether the script is over: no further step is carried out.
func (j *Judge) Ended() bool { return j.ended }

// Trials tells how the trials of the case went; nil where they are not over.
func (j *Judge) Trials() *framework.Outcome { return j.trialOutcome }

// Began is when the installation began, Faulted when the fault's injection began, and
// Struck when it was over; zero before it.
func (j *Judge) Began() time.Time    { return j.began }
func (j *Judge) Injected() time.Time { return j.injected }

// Faulted is when the fault's injection began; zero before it.
func (j *Judge) Faulted() time.Time { return j.faulted }

// NotOnRecord are the steps that the history lacks.
func (j *Judge) NotOnRecord() []framework.StepID { return j.missing }

// Break notes why the variant cannot be judged.
func (j *Judge) Break(err error) {
	j.seen.broken, j.ended = err, true
	j.fail(err.Error())
}

// Lose notes that something of the run could not be stored.
func (j *Judge) Lose(err error) { j.Result.Reasons = append(j.Result.Reasons, err.Error()) }

// Fail adds a reason that makes the run fail, whatever its verdict.
func (j *Judge) Fail(reason string) { j.fail(reason) }

func (j *Judge) fail(reason string) {
	j.failures++
	j.Result.Reasons = append(j.Result.Reasons, reason)
}

// Step judges a step that has ended, or that the history lacks. The error says what was
// not as expected, or why the step could not be judged; *Unexpected tells them apart.
func (j *Judge) Step(s Step) error {
	part, there := j.h.Step(s.ID)
	if !there {
		return j.notOnRecord(s)
	}
	err := j.judge(s.ID, part)
	if part.Panicked {
		j.Break(errors.New(part.Error))
		return errors.New(part.Error)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotAsExpected):
		j.fail(s.Name + ": " + err.Error())
		return err
	}
	j.ended = true
	if s.ID.Kind == framework.KindRemedy {
		j.remedyUnjudged(s, part, err)
	} else {
		j.seen.broken = fmt.Errorf("%s: %w", s.Name, err)
	}
	j.Result.Reasons = append(j.Result.Reasons, s.Name+": "+err.Error())
	return err
}

// NoFailure tells whether what is not as expected is no failure: it is what a run
// without a part, or of any version, is there for.
func (j *Judge) NoFailure() bool { return j.MustChange || !j.Classified() }

func (j *Judge) judge(id framework.StepID, part history.StepView) error {
	switch id.Kind {
	case framework.KindInstall:
		return j.install(part)
	case framework.KindPrecursor:
		return j.precursor(j.Precursor(id), part)
	case framework.KindRemedy:
		return j.remedy(j.Remedy(id), part)
	}
	if part.Error != "" && id.Kind != framework.KindFault {
		if check := id.Kind == framework.KindBefore || id.Kind == framework.KindAfter; check {
			return fmt.Errorf("checking whether %s: %s", j.Check(id).Name, part.Error)
		}
		return errors.New(part.Error)
	}
	switch id.Kind {
	case framework.KindBaseline:
		return j.baseline(part)
	case framework.KindBefore:
		err := j.check(j.Check(id), part)
		if errors.Is(err, ErrNotAsExpected) { // the fault would prove nothing
			j.seen.baseline, j.ended = j.Check(id).Name+": "+err.Error(), true
		}
		return err
	case framework.KindFault:
		return j.fault(part)
	case framework.KindSymptom:
		return j.symptom(part)
	case framework.KindFindings:
		return j.detected(part)
	case framework.KindAfter:
		return j.check(j.Check(id), part)
	case framework.KindObserve:
		return j.observed(part)
	}
	return fmt.Errorf("%s is not a step that is judged", id)
}

// notOnRecord ends the script where a history lacks a step: what would have come of it
// is not known.
func (j *Judge) notOnRecord(s Step) error {
	j.ended = true
	j.missing = append(j.missing, s.ID)
	why := fmt.Errorf("%s: %w", s.Name, ErrNotOnRecord)
	if !j.complete {
		j.seen.broken = why
	}
	for _, r := range j.Script.Remedies[len(j.Result.Remedies):] {
		entry := j.remedyEntry(r)
		entry.Verdict, entry.Reason = Unjudged, ErrNotOnRecord.Error()
		j.Result.Remedies = append(j.Result.Remedies, entry)
	}
	return why
}

func (j *Judge) install(part history.StepView) error {
	done, _, began := part.Act(history.Install, "")
	if !began {
		return errors.New(part.Error)
	}
	j.began = done.Began
	j.Result.Began = &done.Began
	j.seen.broken = nil
	if done.Error == "" {
		return nil
	}
	// What is installed may be what refuses to start.
	if said, _, asked := part.Act(history.Refuses, ""); asked && said.Error == "" && said.Saw != "" && !j.Classified() {
		j.seen.refuses, j.Result.Refuses, j.ended = said.Saw, said.Saw, true
		return fmt.Errorf("%w: %s", ErrNotAsExpected, said.Saw)
	}
	return errors.New(part.Error)
}

// blindError says that it could not be told whether the detectors are quiet, for a
// source was not read.
type unavailableError struct{ error }

// CameQuiet tells whether the detectors are quiet for QuietFor, up to a poll that began
// after the wait for it: since when, or why not. The quiet time may have begun before
// the wait, but not before the moment after.
func NoFindings(v history.View, after, called time.Time, named ...framework.Finding) (since time.Time, quiet bool, q history.Span) {
	q = v.WithoutFindings(after, named...)
	return q.Since, !q.Since.IsZero() && q.For >= NoFindingsFor && q.Since.Add(q.For).After(called), q
}

// WaitQuiet names the wait for CameQuiet.
var WaitNoFindings = fmt.Sprintf("a time of %s without active findings", NoFindingsFor)

// quiet judges a wait for CameQuiet that is over.
func noFindings(v history.View, m history.Mark, after time.Time, named ...framework.Finding) (time.Time, error) {
	since, quiet, q := NoFindings(v, after, m.Began, named...)
	if quiet {
		return since, nil
	}
	if q.Reason == "" {
		q.Reason = fmt.Sprintf("quiet for %s", q.For.Round(time.Millisecond))
	}
	err := error(&await.TimeoutError{What: WaitNoFindings, Bound: m.Bound, Saw: q.Reason})
	if q.Unavailable {
		err = &unavailableError{err}
	}
	return time.Time{}, err
}

// WaitNamed names the wait for findings.
func WaitExpected(named []framework.Finding) string {
	var names []string
	for _, f := range named {
		names = append(names, f.String())
	}
	return "the findings " + strings.Join(names, "; ")
}

// CameNamed tells whether the newest poll, which began at or after a moment, has come
// to each of the findings.
func FoundExpected(v history.View, named []framework.Finding, since time.Time) bool {
	last, there := v.Last()
	return there && !last.Began.Before(since) && len(framework.Missing(named, last.Findings)) == 0
}

// named judges a wait for CameNamed that is over. The error is ErrNotAsExpected, or
// ErrNotOnRecord.
func (j *Judge) expectedFound(part history.StepView, named []framework.Finding) error {
	if j.NothingExpected(named) {
		return nil
	}
	v, m, there := part.At(history.ExpectedFound, "")
	switch {
	case !there:
		return ErrNotOnRecord
	case FoundExpected(v, named, m.Began):
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotAsExpected, &await.TimeoutError{
		What: WaitExpected(named), Bound: m.Bound, Saw: framework.DescribeFindings(v.Findings()),
	})
}

// check judges a fact that was asked. One whose last answer was an error is not known
// to be wrong.
func (j *Judge) check(c framework.Check, part history.StepView) error {
	if c.AsksDetectors && j.Ablate == AblateDetector {
		return nil
	}
	holds, saw, unknown, err := j.asked(c, part)
	switch {
	case err != nil:
		return err
	case holds:
		j.Result.Checks = append(j.Result.Checks, report.Check{ID: c.ID, Name: c.Name, Holds: true})
		return nil
	case unknown != "":
		j.Result.Checks = append(j.Result.Checks, report.Check{ID: c.ID, Name: c.Name, Unknown: true, Reason: "not known: " + unknown})
		return fmt.Errorf("not known: %s", unknown)
	}
	j.Result.Checks = append(j.Result.Checks, report.Check{ID: c.ID, Name: c.Name, Reason: saw})
	return fmt.Errorf("%w: %s", ErrNotAsExpected, saw)
}

// asked is the last answer of a check in a step. Unknown says why there is none.
func (j *Judge) asked(c framework.Check, part history.StepView) (holds bool, saw, unknown string, err error) {
	if c.AsksDetectors {
		v, _, there := part.At(history.DetectorsSaid, c.ID)
		if !there {
			return false, "", "", ErrNotOnRecord
		}
		holds, saw, err = AskDetectors(c, v)
		return holds, saw, "", err
	}
	act, _, there := part.Act(history.Ask, c.ID)
	if !there {
		return false, "", "", ErrNotOnRecord
	}
	return act.Holds, act.Saw, act.Error, nil
}

func (j *Judge) fault(part history.StepView) error {
	done, injected, there := part.Act(history.Inject, "")
	if !there {
		return errors.New(part.Error)
	}
	// What an earlier form has shown and is gone now would be news.
	before, _, _ := part.At(history.Injecting, "")
	j.found = nil
	for _, f := range before.Findings() {
		j.found = append(j.found, f.ID())
	}
	j.faulted = done.Began
	j.Result.Fault = &report.Fault{Began: j.faulted}
	if done.Error != "" {
		return errors.New(done.Error)
	}
	j.injected = injected
	j.Result.Fault.Struck = injected
	j.trials(part)
	if err := j.tookEffect(part); err != nil {
		return err
	}
	return failedOr(part, nil)
}

// tookEffect judges whether a fault took effect. One that did not ends the script:
// nothing that follows would prove anything.
func (j *Judge) tookEffect(part history.StepView) error {
	act, _, there := part.Act(history.TookEffect, "")
	switch {
	case !there:
		return failedOr(part, ErrNotOnRecord)
	case act.Holds:
		return nil
	case act.Error != "":
		return errors.New(act.Error)
	}
	injected, _, _ := part.Act(history.Inject, "")
	j.seen.noEffect, j.ended = fmt.Sprintf("%s: %s", injected.Saw, act.Saw), true
	return fmt.Errorf("%w: it did not take effect: %s", ErrNotAsExpected, act.Saw)
}

// failedOr is why a step could not be carried out, or another error where it could.
func failedOr(part history.StepView, other error) error {
	if part.Error != "" {
		return errors.New(part.Error)
	}
	return other
}

// tooFewTrials says so where an unhurt variant has stood fewer trials than it must;
// empty where it has stood them.
func (j *Judge) tooFewTrials() string {
	ran := j.Result.Race
	if ran == nil || ran.Struck || j.Due == nil {
		return ""
	}
	if due := j.Due(); ran.Rounds < due {
		return fmt.Sprintf("it has to survive %d trials (%s), and survived %d", due, ran.Round, ran.Rounds)
	}
	return ""
}

// trials notes how the trials of a probabilistic fault went, and how likely an affected
// component would have stood as many by luck.
func (j *Judge) trials(part history.StepView) {
	race := j.Script.Trials
	ran, _, there := part.Act(history.Trials, "")
	if race == nil || !there {
		return
	}
	j.trialOutcome = &framework.Outcome{Trials: ran.Rounds, Occurred: ran.Holds, Count: 1}
	j.Result.Race = &report.Race{Round: race.Unit, Rounds: ran.Rounds, Struck: ran.Holds, Accelerator: j.Accelerator}
	if stood, of := framework.Survived(ran.Rounds, race.Rates[j.Accelerator]...); !ran.Holds && of > 0 {
		j.Result.Race.Luck = new(report.NewRate(stood, of))
	}
}

// Conclude judges a variant whose run has ended, maybe before its verdict: what was
// seen until then is not enough for one.
func (j *Judge) Conclude(now time.Time) {
	if j.Result.Verdict == "" && j.seen.broken == nil {
		j.seen.broken = errors.New("the run ended before the variant was judged")
	}
	j.Verdict(now)
}

// Verdict judges the variant, once.
func (j *Judge) Verdict(now time.Time) {
	if j.Result.Verdict != "" {
		return
	}
	verdict, why := judge(j.seen)
	j.Result.Verdict = string(verdict)
	if j.Result.Verdict != j.Result.Expected && !slices.Contains(j.Result.Reasons, why) {
		j.Result.Reasons = append(j.Result.Reasons, why)
	}
	if !j.began.IsZero() {
		j.Result.ElapsedMS = now.Sub(j.began).Milliseconds()
	}
}

// Outcome is what the variant means for the run. A remedy that could not be judged
// leaves a run without its proof; where something failed besides, it fails.
func (j *Judge) Outcome() framework.RunVerdict {
	unjudged := slices.ContainsFunc(j.Result.Remedies, func(r report.Remedy) bool { return r.Verdict == Unjudged })
	failed := j.failures > 0
	if j.MustChange { // that steps fail is what it is there for
		failed = slices.ContainsFunc(j.Result.Remedies, func(r report.Remedy) bool { return r.Verdict != r.Expected })
	}
	switch {
	case j.Result.Verdict == string(framework.Unknown):
		return framework.Inconclusive
	case j.Result.Verdict == string(framework.Vacuous) && j.Result.Expected != j.Result.Verdict:
		return framework.Inconclusive
	case !j.Classified():
		return framework.Pass // it could be judged
	case j.Result.Verdict != j.Result.Expected:
		return framework.Fail
	case j.MustChange && j.Ablate == AblateFault && j.seen.noEffect == "": // vacuous for another reason
		return framework.Inconclusive
	case unjudged && (j.MustChange || !failed):
		return framework.Inconclusive
	case failed:
		return framework.Fail
	}
	return framework.Pass
}

// Run is the verdict of a run: a failure outweighs what could not be judged. Broken is why
// nothing more could be judged at all; nil if all could.
func Run(broken error, all ...*Judge) framework.RunVerdict {
	verdict := framework.Pass
	if broken != nil || len(all) == 0 {
		verdict = framework.Inconclusive
	}
	for _, j := range all {
		verdict = framework.Worst(verdict, j.Outcome())
	}
	return verdict
}
