package verdict

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
)

// baseline asserts that for a time before the fault no probe loses packets, all sources are available, and the
// findings are exactly the script's latent findings.
func (j *Judge) baseline(part history.StepView) error {
	v, m, there := part.At(history.ProbesClean, "")
	if !there {
		return ErrNotOnRecord
	}
	j.Result.Baseline.Probes = len(j.Script.Probes)
	since, clean := probe.JudgeClean(v.Timelines(), nil, m.Began, BaselineFor, m.Bound)
	var active error
	if clean == nil {
		if v, m, there = part.At(history.NoFindings, ""); !there {
			return ErrNotOnRecord
		}
		_, active = noFindings(v, m, j.began)
	}
	if errors.As(active, new(*unavailableError)) {
		return active
	}
	findings := v.Findings()
	for _, f := range findings {
		j.addFinding(f, "baseline", nil, nil, nil)
	}
	switch {
	case clean != nil:
		for _, t := range v.Timelines() {
			until := v.Time.Add(-t.Probe.Timeout) // the outcome of later packets is not known yet
			if j.seen.traffic = tooFew(t, until.Add(-BaselineFor), until); j.seen.traffic != "" {
				j.ended = true
				return fmt.Errorf("%w: %s", ErrNotAsExpected, j.seen.traffic)
			}
		}
		return j.badBaseline(clean.Error())
	case active != nil:
		return j.badBaseline(active.Error())
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

// badBaseline ends the script: after a bad baseline the fault proves nothing.
func (j *Judge) badBaseline(why string) error {
	j.seen.baseline, j.ended = why, true
	return fmt.Errorf("%w: %s", ErrNotAsExpected, why)
}

// AskDetectors makes a check of the findings.
func AskDetectors(c framework.Check, v history.View) (holds bool, saw string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the check %s has AsksDetectors, and asks for more than findings, which is all that it gets: %v", c.ID, p)
		}
	}()
	return c.Holds(context.Background(), &framework.Run{Findings: v.Findings})
}

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
	wrong := j.judgePrecursor(form, part, done.Began, injected)
	if wrong != nil && !errors.Is(wrong, ErrNotAsExpected) {
		return wrong
	}
	if err := j.precursorUndone(form, part); err != nil { // outweighs an unexpected result
		if wrong != nil {
			j.Fail(form.Step() + ": " + wrong.Error())
		}
		return err
	}
	return wrong
}

// judgePrecursor judges a precursor. An error other than ErrNotAsExpected is why it could not be judged.
func (j *Judge) judgePrecursor(form framework.Precursor, part history.StepView, began, injected time.Time) error {
	missing := j.expectedFound(part, form.Expected)
	if errors.Is(missing, ErrNotOnRecord) {
		return missing
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
	if !ExpectsActive(form) {
		at, waited, there := part.At(history.NoFindings, "")
		if !there {
			return failedOr(part, ErrNotOnRecord)
		}
		if _, err := noFindings(at, waited, injected, form.Transient...); errors.As(err, new(*unavailableError)) {
			return err
		} else if err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	v, _, there := part.At(history.Checked, "") // includes findings that came while checks waited
	if !there {
		return failedOr(part, ErrNotOnRecord)
	}
	for _, s := range v.Seen(began) {
		j.addFinding(s.Finding, form.Name, &s.At, new(s.At.Sub(began)), nil)
	}
	if active := v.Active(injected, slices.Concat(form.Expected, form.Transient)...); len(active) > 0 {
		wrong = append(wrong, "unexpected finding: "+framework.DescribeFindings(active))
	}
	timelines := watched.Timelines()
	if hurt := j.lossy(timelines, j.cleanSince, m.Until, anyProbe); len(hurt) > 0 {
		wrong = append(wrong, "probes losing packets: "+strings.Join(hurt, ", ")+"; expected: none")
	}
	for _, t := range timelines {
		if few := cmp.Or(tooFew(t, began, m.Until), j.tooThin(t, began, m.Until)); few != "" {
			return errors.New(few)
		}
	}
	if len(wrong) > 0 {
		return errors.Join(missing, fmt.Errorf("%w: %s", ErrNotAsExpected, strings.Join(wrong, "; ")))
	}
	return missing
}

// ExpectsActive reports whether a precursor is expected to cause an active finding.
func ExpectsActive(form framework.Precursor) bool {
	return slices.ContainsFunc(form.Expected, func(f framework.Finding) bool { return f.State == detect.Active })
}

func (j *Judge) precursorUndone(form framework.Precursor, part history.StepView) error {
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

// Symptom returns the incident's probes that lost packets from the fault until a moment, and the first loss.
func (j *Judge) Symptom(v history.View, until time.Time) (names []string, onset time.Time) {
	return j.lost(v.Timelines(), j.faulted, until, j.isImpacted)
}

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

func (j *Judge) detected(part history.StepView) error {
	err := j.expectedFound(part, j.Script.Expected)
	if errors.Is(err, ErrNotAsExpected) {
		v, _, _ := part.At(history.ExpectedFound, "")
		j.seen.missing = list(framework.Missing(j.Script.Expected, v.Findings()))
		j.seen.unavailable = v.UnavailableSince(j.injected)
	}
	return err
}

// NoSymptom reports whether no probe of the incident lost packets in the wait for the symptom, or there was no wait.
// Then there must be no active findings.
func (j *Judge) NoSymptom() bool { return !j.MayReproduce() || j.Result.Onset == nil }

// observed judges the whole time from the baseline on: packets, findings, and whether there was enough traffic.
func (j *Judge) observed(part history.StepView) error {
	watched, m, there := part.At(history.Watched, "")
	if !there {
		return ErrNotOnRecord
	}
	v, noSymptom := watched, j.NoSymptom()
	if noSymptom { // the time without findings must reach to the end
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
	if j.seen.traffic == "" {
		j.seen.traffic = watched.NotIsolated()
	}
	if j.seen.images = j.ranImages(part); j.seen.images != "" {
		wrong = append(wrong, j.seen.images)
	}
	if few := j.tooFewTrials(); few != "" && j.seen.traffic == "" {
		j.seen.traffic = few
	}
	for _, s := range v.Seen(j.faulted) {
		j.addFinding(s.Finding, "fault", &s.At, new(s.At.Sub(j.faulted)), j.sinceOnset(s))
	}
	j.seen.active = len(v.Active(j.injected))
	if active := v.Active(j.injected, slices.Concat(j.Script.Expected, j.Script.Transient)...); len(active) > 0 {
		wrong = append(wrong, "unexpected finding: "+framework.DescribeFindings(active))
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
		j.ended = true // there is nothing to remedy
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", ErrNotAsExpected, strings.Join(wrong, "; "))
	}
	return nil
}

// sinceOnset is the time from the first lost packet to an active finding; nil if the finding was earlier.
func (j *Judge) sinceOnset(s history.Sighting) *time.Duration {
	if j.Result.Onset == nil || s.State != detect.Active || s.At.Before(*j.Result.Onset) {
		return nil
	}
	return new(s.At.Sub(*j.Result.Onset))
}

// addFinding adds a finding once. during names the part of the script, delay is the time since that part began, and
// detected the time since the first loss.
func (j *Judge) addFinding(f detect.Finding, during string, at *time.Time, delay, detected *time.Duration) {
	if slices.Contains(j.found, f.ID()) {
		return
	}
	j.found = append(j.found, f.ID())
	j.Result.Findings = append(j.Result.Findings, report.Finding{
		Finding: f, During: during, At: at, CameMS: milliseconds(delay), TimeToDetectMS: milliseconds(detected),
	})
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	return new(d.Milliseconds())
}

// Later is the later one of two moments.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
