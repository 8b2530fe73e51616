package verdict

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
)

// Judge judges a case by its history, step by step. The result depends only on the case, the history and Setting.
type Judge struct {
	Case
	Setting
	// Result is the result so far.
	Result report.Variant

	h    *history.History
	seen observation

	began        time.Time
	cleanSince   time.Time   // when the baseline's clean time began
	faulted      time.Time   // when the fault's injection began
	injected     time.Time   // when it was over
	found        []detect.ID // the findings that the result has
	failures     int         // reasons that make the run fail
	complete     bool        // the history has everything that the verdict depends on
	ended        bool        // the script has ended: no later step changes the verdict
	trialOutcome *framework.Outcome
	missing      []framework.StepID // steps that the history lacks
	// restoreFailed is why the lab of a stored run was not restored.
	restoreFailed error
}

// Setting is what a verdict depends on besides the variant's own history.
type Setting struct {
	// Accelerator is the accelerator of the lab's guests; empty without guests.
	Accelerator string
	// Due returns how many trials an unaffected variant must survive. Nil: any number is enough.
	Due func() int
	// Images are the digests of the images that were built, by reference, as in report.Report.
	Images map[string]string
}

// NewJudge makes a judge of a case that has not begun.
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

// ErrNotAsExpected marks an unexpected result. The script may go on.
var ErrNotAsExpected = errors.New("not as expected")

// ErrNotOnRecord is why a stored run cannot be judged: an older relapse did not record what this one needs.
var ErrNotOnRecord = errors.New("the stored run has no record of it")

// Ended reports whether the script is over: no further step is carried out.
func (j *Judge) Ended() bool { return j.ended }

// Trials is the outcome of the trials; nil before their end.
func (j *Judge) Trials() *framework.Outcome { return j.trialOutcome }

// Began is when the installation began; zero before it.
func (j *Judge) Began() time.Time { return j.began }

// Faulted is when the fault's injection began, and Injected when it ended; zero before it.
func (j *Judge) Faulted() time.Time  { return j.faulted }
func (j *Judge) Injected() time.Time { return j.injected }

// Break ends the script: the variant cannot be judged.
func (j *Judge) Break(err error) {
	j.seen.broken, j.ended = err, true
	j.Fail(err.Error())
}

// Lose adds why something of the run could not be stored.
func (j *Judge) Lose(err error) { j.Result.Reasons = append(j.Result.Reasons, err.Error()) }

// Fail adds a reason that makes the run fail, whatever its verdict.
func (j *Judge) Fail(reason string) {
	j.failures++
	j.Result.Reasons = append(j.Result.Reasons, reason)
}

// Step judges a step that has ended, or is missing. The error is ErrNotAsExpected, or why it could not be judged.
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
		j.Fail(s.Name + ": " + err.Error())
		return err
	}
	j.ended = true
	if s.ID.Kind == framework.KindRemedy && !part.Interrupted {
		// The state of the lab is unknown. The verdict of the incident remains.
		j.leaveRemedies(fmt.Sprintf("not tried: %q could not be judged", j.Remedy(s.ID).Name))
	} else {
		j.seen.broken = fmt.Errorf("%s: %w", s.Name, err)
	}
	j.Result.Reasons = append(j.Result.Reasons, s.Name+": "+err.Error())
	return err
}

// NoFailure reports whether an unexpected result is no failure: in an ablation, or without an expectation.
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
		if errors.Is(err, ErrNotAsExpected) { // after this the fault would prove nothing
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

// notOnRecord ends the script because the history lacks a step.
func (j *Judge) notOnRecord(s Step) error {
	j.ended = true
	j.missing = append(j.missing, s.ID)
	why := fmt.Errorf("%s: %w", s.Name, ErrNotOnRecord)
	if !j.complete {
		j.seen.broken = why
	}
	j.leaveRemedies(ErrNotOnRecord.Error())
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
	// Perhaps it is the component under test that refuses to start.
	if said, _, asked := part.Act(history.Refuses, ""); asked && said.Error == "" && said.Saw != "" && !j.Classified() {
		if wrong := j.ranImages(part); wrong != "" { // another image may refuse
			return errors.New(wrong)
		}
		j.seen.refuses, j.Result.Refuses, j.ended = said.Saw, said.Saw, true
		return fmt.Errorf("%w: %s", ErrNotAsExpected, said.Saw)
	}
	return errors.New(part.Error)
}

// unavailableError says that an unavailable source may hide an active finding.
type unavailableError struct{ error }

// NoFindings reports whether there were no active findings for NoFindingsFor, until a poll that began after called,
// the beginning of the wait. The span may begin before the wait, but not before earliest.
func NoFindings(v history.View, earliest, called time.Time, expected ...framework.Finding) (s history.Span, enough bool) {
	s = v.WithoutFindings(earliest, expected...)
	return s, !s.Since.IsZero() && s.For >= NoFindingsFor && s.Since.Add(s.For).After(called)
}

// WaitNoFindings describes the wait for NoFindings.
var WaitNoFindings = fmt.Sprintf("a time of %s without active findings", NoFindingsFor)

func noFindings(v history.View, m history.Mark, earliest time.Time, expected ...framework.Finding) (since time.Time, err error) {
	s, enough := NoFindings(v, earliest, m.Began, expected...)
	if enough {
		return s.Since, nil
	}
	s.Reason = cmp.Or(s.Reason, fmt.Sprintf("no active findings for %s", s.For.Round(time.Millisecond)))
	err = &await.TimeoutError{What: WaitNoFindings, Bound: m.Bound, Saw: s.Reason}
	if s.Unavailable {
		err = &unavailableError{err}
	}
	return time.Time{}, err
}

func WaitExpected(expected []framework.Finding) string { return "the findings " + list(expected) }

// FoundExpected reports whether the newest poll began at or after a moment and has each of the findings.
func FoundExpected(v history.View, expected []framework.Finding, since time.Time) bool {
	last, there := v.Last()
	return there && !last.Began.Before(since) && len(framework.Missing(expected, last.Findings)) == 0
}

// expectedFound judges a wait for FoundExpected. The error is ErrNotAsExpected or ErrNotOnRecord.
func (j *Judge) expectedFound(part history.StepView, expected []framework.Finding) error {
	if j.NothingExpected(expected) {
		return nil
	}
	v, m, there := part.At(history.ExpectedFound, "")
	switch {
	case !there:
		return ErrNotOnRecord
	case FoundExpected(v, expected, m.Began):
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotAsExpected, &await.TimeoutError{
		What: WaitExpected(expected), Bound: m.Bound, Saw: framework.DescribeFindings(v.Findings()),
	})
}

func (j *Judge) check(c framework.Check, part history.StepView) error {
	if c.AsksDetectors && j.Ablate == AblateDetector {
		return nil
	}
	holds, saw, unknown, err := j.asked(c, part)
	if err != nil {
		return err
	}
	result := report.Check{ID: c.ID, Name: c.Name}
	switch {
	case unknown != "":
		result.Unknown, result.Reason = true, "not known: "+unknown
		err = errors.New(result.Reason)
	case holds:
		result.Holds = true
	default:
		result.Reason = saw
		err = fmt.Errorf("%w: %s", ErrNotAsExpected, saw)
	}
	j.Result.Checks = append(j.Result.Checks, result)
	return err
}

// asked is the last answer of a check in a step. unknown is why there is no answer.
func (j *Judge) asked(c framework.Check, part history.StepView) (holds bool, saw, unknown string, err error) {
	if c.AsksDetectors {
		v, _, there := part.At(history.DetectorsSaid, c.ID)
		if !there {
			return false, "", "", ErrNotOnRecord
		}
		holds, saw, err = AskDetectors(c, v)
		return holds, saw, "", err
	}
	act, _, there := part.Act(history.Check, c.ID)
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
	// A precursor's finding that is gone before the fault counts if it returns.
	before, _, _ := part.At(history.Injecting, "")
	j.found = each.Of(before.Findings(), detect.Finding.ID)
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

// tookEffect ends the script if a fault has not taken effect: later steps would prove nothing.
func (j *Judge) tookEffect(part history.StepView) error {
	act, _, there := part.Act(history.TookEffect, "")
	switch {
	case !there:
		return failedOr(part, ErrNotOnRecord)
	case act.Error != "":
		return errors.New(act.Error)
	case act.Holds:
		return nil
	}
	injected, _, _ := part.Act(history.Inject, "")
	j.seen.noEffect, j.ended = fmt.Sprintf("%s: %s", injected.Saw, act.Saw), true
	return fmt.Errorf("%w: it did not take effect: %s", ErrNotAsExpected, act.Saw)
}

// failedOr is the step's error, or other if there is none.
func failedOr(part history.StepView, other error) error {
	if part.Error != "" {
		return errors.New(part.Error)
	}
	return other
}

// tooFewTrials returns a sentence if an unaffected variant survived too few trials; otherwise empty.
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

func (j *Judge) trials(part history.StepView) {
	trials := j.Script.Trials
	ran, _, there := part.Act(history.Trials, "")
	if trials == nil || !there {
		return
	}
	j.trialOutcome = &framework.Outcome{Trials: ran.Rounds, Occurred: ran.Holds, Count: 1}
	j.Result.Race = &report.Race{Round: trials.Unit, Rounds: ran.Rounds, Struck: ran.Holds, Accelerator: j.Accelerator}
	if survived, total := framework.Survived(ran.Rounds, trials.On(j.Accelerator)...); !ran.Holds && total > 0 {
		j.Result.Race.Luck = new(report.NewRate(survived, total))
	}
}

// Conclude judges a variant whose run has ended. Before the verdict step the verdict is unknown.
func (j *Judge) Conclude(now time.Time) {
	if j.Result.Verdict == "" && j.seen.broken == nil {
		j.seen.broken = errors.New("the run ended before the variant was judged")
	}
	j.Verdict(now)
}

// Verdict judges the variant. Further calls do nothing.
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

// Outcome is the variant's contribution to the verdict of the run. A remedy that could not be judged makes it
// inconclusive, unless something else failed.
func (j *Judge) Outcome() framework.RunVerdict {
	unjudged := slices.ContainsFunc(j.Result.Remedies, func(r report.Remedy) bool { return r.Verdict == Unjudged })
	failed := j.failures > 0
	if j.MustChange { // steps are expected to fail
		failed = slices.ContainsFunc(j.Result.Remedies, func(r report.Remedy) bool { return r.Verdict != r.Expected })
	}
	switch {
	case j.Result.Verdict == string(framework.Unknown):
		return framework.Inconclusive
	case j.Result.Verdict == string(framework.Vacuous) && j.Result.Expected != j.Result.Verdict:
		return framework.Inconclusive
	case j.Result.Expected == "":
		return framework.Observed
	case j.Result.Verdict != j.Result.Expected:
		return framework.Fail
	case !j.Classified():
		return framework.Pass
	case j.MustChange && j.Ablate == AblateFault && j.seen.noEffect == "": // vacuous for another reason
		return framework.Inconclusive
	case unjudged && (j.MustChange || !failed):
		return framework.Inconclusive
	case failed:
		return framework.Fail
	}
	return framework.Pass
}

// Run is the verdict of a run. broken is why the run could not continue; may be nil.
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
