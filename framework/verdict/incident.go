package verdict

import (
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
)

// baseline asserts that all is well before the fault: for the same time probes lose
// nothing, every source is read, and the detectors come to the findings that the script
// names and no others.
func (j *Judge) baseline(part history.StepView) error {
	v, m, there := part.At(history.ProbesClean, "")
	if !there {
		return ErrNotOnRecord
	}
	j.Result.Baseline.Probes = len(j.Script.Probes)
	since, clean := probe.JudgeClean(v.Timelines(), nil, m.Began, BaselineFor, m.Bound)
	var noise error
	if clean == nil {
		if v, m, there = part.At(history.NoFindings, ""); !there {
			return ErrNotOnRecord
		}
		_, noise = noFindings(v, m, j.began)
	}
	if errors.As(noise, new(*unavailableError)) {
		return noise
	}
	findings := v.Findings()
	for _, f := range findings {
		j.addFinding(f, "baseline", nil, nil, nil)
	}
	switch {
	case clean != nil:
		for _, t := range v.Timelines() {
			until := v.Time.Add(-t.Probe.Timeout) // what was sent later is not judged yet
			if j.seen.traffic = tooFew(t, until.Add(-BaselineFor), until); j.seen.traffic != "" {
				j.ended = true
				return fmt.Errorf("%w: %s", ErrNotAsExpected, j.seen.traffic)
			}
		}
		return j.badBaseline(clean.Error())
	case noise != nil:
		return j.badBaseline(noise.Error())
	}
	j.cleanSince = since
	j.Result.Baseline.Seconds = v.Time.Sub(since).Seconds()
	for _, t := range v.Timelines() {
		j.Result.Baseline.Lost += t.Between(since, v.Time).Lost
	}
	if j.Ablate == AblateDetector || !j.Classified() {
		return nil
	}
	var wrong []string
	for _, f := range framework.Unexpected(findings, j.Script.Latent...) {
		wrong = append(wrong, "unexpected finding: "+framework.DescribeFindings([]detect.Finding{f}))
	}
	for _, f := range framework.Missing(j.Script.Latent, findings) {
		wrong = append(wrong, "missing finding: "+f.String())
	}
	if len(wrong) > 0 {
		return j.badBaseline("the findings are not the expected ones: " + strings.Join(wrong, "; "))
	}
	return nil
}

// badBaseline ends the script: what comes after a bad baseline proves nothing.
func (j *Judge) badBaseline(why string) error {
	j.seen.baseline, j.ended = why, true
	return fmt.Errorf("%w: %s", ErrNotAsExpected, why)
}

// AskDetectors asks a check what the detectors have come to.
func AskDetectors(c framework.Check, v history.View) (holds bool, saw string, err error) {
	return c.Holds(context.Background(), &framework.Run{Findings: v.Findings})
}

// precursor judges a form of the incident that hurts nobody.
func (j *Judge) precursor(form framework.Precursor, part history.StepView) error {
	done, injected, there := part.Act(history.Inject, "")
	switch {
	case !there:
		return errors.New(part.Error)
	case done.Error != "":
		return errors.New(done.Error)
	}
	if err := j.tookEffect(part); err != nil {
		return err
	}
	if _, _, there := part.At(history.Watched, ""); !there {
		return failedOr(part, ErrNotOnRecord)
	}
	came := j.judgePrecursor(form, part, done.Began, injected)
	if came != nil && !errors.Is(came, ErrNotAsExpected) {
		return came
	}
	if back := j.tookBack(form, part); back != nil { // that it broke weighs more than what the form did
		if came != nil {
			j.fail(form.Step() + ": " + came.Error())
		}
		return back
	}
	return came
}

// precursorCame judges what came of a precursor whose injection lasted from began to
// struck. An error that is not ErrNotAsExpected says why that is not known.
func (j *Judge) judgePrecursor(form framework.Precursor, part history.StepView, began, injected time.Time) error {
	named := j.expectedFound(part, form.Expected)
	if errors.Is(named, ErrNotOnRecord) {
		return named
	}
	var wrong []string
	for _, c := range form.Aftermath {
		switch err := j.check(c, part); {
		case errors.Is(err, ErrNotAsExpected):
			wrong = append(wrong, c.Name+": "+strings.TrimPrefix(err.Error(), ErrNotAsExpected.Error()+": "))
		case err != nil:
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	watched, m, _ := part.At(history.Watched, "")
	v := watched
	if !ExpectsActive(form) {
		at, waited, there := part.At(history.NoFindings, "")
		if !there {
			return failedOr(part, ErrNotOnRecord)
		}
		v = at
		if _, err := noFindings(v, waited, injected, form.Transient...); errors.As(err, new(*unavailableError)) {
			return err
		} else if err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	for _, s := range v.Seen(began) {
		j.addFinding(s.Finding, form.Name, &s.At, new(s.At.Sub(began)), nil)
	}
	if alarms := v.Active(injected, slices.Concat(form.Expected, form.Transient)...); len(alarms) > 0 {
		wrong = append(wrong, "unexpected finding: "+framework.DescribeFindings(alarms))
	}
	timelines := watched.Timelines()
	if impacted, _ := j.lost(timelines, j.cleanSince, m.Until, anyProbe); len(impacted) > 0 {
		wrong = append(wrong, "probes losing packets: "+strings.Join(impacted, ", ")+"; expected: none")
	}
	for _, t := range timelines {
		if few := tooFew(t, began, m.Until); few != "" {
			return errors.New(few)
		}
	}
	if len(wrong) > 0 {
		return errors.Join(named, fmt.Errorf("%w: %s", ErrNotAsExpected, strings.Join(wrong, "; ")))
	}
	return named
}

// NamesAlarm tells whether a precursor is expected to raise an active finding.
func ExpectsActive(form framework.Precursor) bool {
	return slices.ContainsFunc(form.Expected, func(f framework.Finding) bool { return f.State == detect.Active })
}

// tookBack judges whether a precursor that must be gone before the rest of the script
// is gone.
func (j *Judge) tookBack(form framework.Precursor, part history.StepView) error {
	if part.Error != "" {
		return errors.New(part.Error)
	}
	if !form.Undone || j.Ablate == AblateFault {
		return nil
	}
	v, m, there := part.At(history.TakenBack, "")
	if !there {
		return ErrNotOnRecord
	}
	if _, err := noFindings(v, m, m.Began); err != nil {
		return fmt.Errorf("undone, but %w", err)
	}
	return nil
}

// Symptom names the probes of the incident that were hurt since the fault, up to a
// moment, and tells when the first packet was lost.
func (j *Judge) Symptom(v history.View, until time.Time) (names []string, onset time.Time) {
	return j.lost(v.Timelines(), j.faulted, until, j.isImpacted)
}

// symptom judges whether every probe of the incident was hurt. If not, there is nothing
// to detect and nothing to mend, and the step has observed the rest.
func (j *Judge) symptom(part history.StepView) error {
	v, m, there := part.At(history.Watched, "symptom")
	if !there {
		return ErrNotOnRecord
	}
	expected := j.Impacted()
	names, onset := j.Symptom(v, m.Until)
	if !onset.IsZero() {
		j.Result.Onset, j.Result.ProbesHurt = &onset, names
	}
	if len(names) == len(expected) {
		return nil
	}
	err := j.observed(part)
	j.ended = true
	if len(names) == 0 && !j.Classified() || err != nil && !errors.Is(err, ErrNotAsExpected) {
		return err
	}
	what := fmt.Errorf("%w: probes losing packets: %s; expected: %s", ErrNotAsExpected, orNone(names), orNone(expected))
	return errors.Join(what, err)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// detected judges what the detectors made of the fault.
func (j *Judge) detected(part history.StepView) error {
	err := j.expectedFound(part, j.Script.Expected)
	if errors.Is(err, ErrNotAsExpected) {
		v, _, _ := part.At(history.ExpectedFound, "")
		j.seen.missing = list(framework.Missing(j.Script.Expected, v.Findings()))
		j.seen.unavailable = v.UnavailableSince(j.injected)
	}
	return err
}

// Unhurt tells whether no probe of the incident was hurt when its symptom was waited
// for, or the case has none: then the detectors must be quiet.
func (j *Judge) NoSymptom() bool { return !j.MayReproduce() || j.Result.Onset == nil }

// observed judges what the whole time from the baseline on has shown: who was hurt,
// what the detectors said, and whether there was traffic enough to tell.
func (j *Judge) observed(part history.StepView) error {
	watched, m, there := part.At(history.Watched, "")
	if !there {
		return ErrNotOnRecord
	}
	v, noSymptom := watched, j.NoSymptom()
	if noSymptom { // not before: the quiet time must reach to the end
		at, waited, there := part.At(history.NoFindings, "")
		if !there {
			return ErrNotOnRecord
		}
		v = at
		switch _, err := noFindings(v, waited, j.injected, j.Script.Expected...); {
		case errors.As(err, new(*unavailableError)):
			j.seen.unavailable = err.Error()
		case err != nil:
			j.seen.stillActive = err.Error()
		}
	}
	wrong := j.judgeTraffic(watched.Timelines(), m.Until)
	if few := j.tooFewTrials(); few != "" && j.seen.traffic == "" {
		j.seen.traffic = few
	}
	for _, s := range v.Seen(j.faulted) {
		j.addFinding(s.Finding, "fault", &s.At, new(s.At.Sub(j.faulted)), j.sinceOnset(s))
	}
	j.seen.active = len(v.Active(j.injected))
	if alarms := v.Active(j.injected, slices.Concat(j.Script.Expected, j.Script.Transient)...); len(alarms) > 0 {
		wrong = append(wrong, "unexpected finding: "+framework.DescribeFindings(alarms))
	}
	for _, why := range []string{j.seen.unavailable, j.seen.stillActive, j.seen.traffic} {
		if why != "" && noSymptom {
			wrong = append(wrong, why)
		}
	}
	if noSymptom && len(j.seen.impacted) == 0 && j.Script.Refuses != nil {
		said, _, asked := part.Act(history.Refuses, "")
		switch {
		case !asked:
			return ErrNotOnRecord
		case said.Error != "":
			return fmt.Errorf("checking whether it refuses to start: %s", said.Error)
		}
		j.seen.refuses, j.Result.Refuses = said.Saw, said.Saw
	}
	j.complete = true
	if verdict, _ := judge(j.seen); verdict != framework.Reproduced {
		j.ended = true // there is nothing to mend
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", ErrNotAsExpected, strings.Join(wrong, "; "))
	}
	return nil
}

// sinceOnset is the time from the first lost probe to an alarm that came after it. Of
// another finding it would say nothing.
func (j *Judge) sinceOnset(s history.Sighting) *time.Duration {
	if j.Result.Onset == nil || s.State != detect.Active || s.At.Before(*j.Result.Onset) {
		return nil
	}
	return new(s.At.Sub(*j.Result.Onset))
}

// addFinding puts a finding into the report, unless it is there. During is what it came
// with, at the moment of the finding and came the time from the beginning of that to it.
func (j *Judge) addFinding(f detect.Finding, during string, at *time.Time, came, detected *time.Duration) {
	if slices.Contains(j.found, f.ID()) {
		return
	}
	j.found = append(j.found, f.ID())
	j.Result.Findings = append(j.Result.Findings, report.Finding{
		Finding: f, During: during, At: at, CameMS: milliseconds(came), TimeToDetectMS: milliseconds(detected),
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
