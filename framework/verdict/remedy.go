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
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
)

const (
	Recovers    = "recovers"
	DoesNotHelp = "does-not-help"
	Unjudged    = "unknown"
)

func (j *Judge) remedyEntry(r framework.Remedy) report.Remedy {
	entry := report.Remedy{ID: r.ID, Name: r.Name, Expected: DoesNotHelp}
	if r.Helps && !(j.MustChange && j.Ablate == AblateRemedy) {
		entry.Expected = Recovers
	}
	return entry
}

func (j *Judge) leaveRemedies(why string) {
	for _, r := range j.Script.Remedies[len(j.Result.Remedies):] {
		entry := j.remedyEntry(r)
		entry.Verdict, entry.Reason = Unjudged, why
		j.Result.Remedies = append(j.Result.Remedies, entry)
	}
}

func (j *Judge) remedy(r framework.Remedy, part history.StepView) error {
	entry := j.remedyEntry(r)
	err := j.Tried(r, part, &entry)
	broke := err != nil && !errors.Is(err, ErrNotAsExpected)
	if broke {
		entry.Verdict, entry.Reason, entry.TimeToRecoverMS, entry.TimeToQuietMS = Unjudged, err.Error(), nil, nil
	}
	j.Result.Remedies = append(j.Result.Remedies, entry)
	if broke {
		return err
	}
	if undone := j.undone(r, part); undone != nil { // outweighs an unexpected result
		if err != nil {
			j.Fail(r.Step() + ": " + err.Error())
		}
		return undone
	}
	return err
}

// Tried judges a remedy and fills in its entry. An error other than ErrNotAsExpected is why it could not be judged.
func (j *Judge) Tried(r framework.Remedy, part history.StepView, entry *report.Remedy) error {
	// A remedy proves something only if the lab is broken.
	v, m, there := part.At(history.Broken, "")
	if !there {
		return failedOr(part, ErrNotOnRecord)
	}
	if _, err := probe.JudgeOutage(v.Timelines(), j.Impacted(), m.Until, j.Script.MinOutage, m.Bound); err != nil {
		return fmt.Errorf("the symptom has gone: %w", err)
	}
	if at, m, there := part.At(history.Replaced, ""); there {
		if err := j.recoveredBefore(at, m.Until); err != nil {
			return err
		}
	}
	done, applied, there := part.Act(history.Apply, "")
	if !there {
		return failedOr(part, ErrNotOnRecord)
	}
	entry.Began = &done.Began
	if done.Error != "" {
		return errors.New(done.Error)
	}
	entry.Applied = &applied
	if r.Helps {
		return j.recovers(r, part, done.Began, applied, entry)
	}
	return j.doesNotHelp(part, applied, entry)
}

// recoveredBefore returns an error if a probe of the incident had recovered before a moment: a lab that recovers by
// itself proves no remedy. A packet is sent up to one interval after its slot. If only some packets are lost, the last
// ones may have been answered by chance: then a probe has recovered once it loses no packet for RecoveredFor.
func (j *Judge) recoveredBefore(v history.View, moment time.Time) error {
	if j.Script.Partial {
		moment = moment.Add(-RecoveredFor(j.Script))
	}
	for _, t := range v.Timelines() {
		if run, clean := t.Clean(); clean && j.isImpacted(t.Probe) && run.Since.Before(moment.Add(-t.Probe.Interval)) {
			return fmt.Errorf("%s had recovered before the remedy: the lab recovers by itself", t.Probe.Name)
		}
	}
	return nil
}

// recovers asserts that a remedy helps: traffic recovers and does not fail again, and there are no active findings.
func (j *Judge) recovers(r framework.Remedy, part history.StepView, began, applied time.Time, entry *report.Remedy) error {
	v, m, there := part.At(history.Back, "")
	if !there {
		return failedOr(part, ErrNotOnRecord)
	}
	clean, err := probe.JudgeClean(v.Timelines(), Running(v.Timelines()), m.Began, RecoveredFor(j.Script), m.Bound)
	if err == nil {
		if err := j.recoveredBefore(v, began); err != nil {
			return err
		}
		if took := clean.Sub(began); j.Ablate != AblateRemedy && took > r.Bound {
			entry.Verdict = DoesNotHelp
			entry.Reason = fmt.Sprintf("traffic recovered after %s, and the bound is %s", took.Round(time.Second), r.Bound)
			return fmt.Errorf("%w: %s", ErrNotAsExpected, entry.Reason)
		}
		entry.TimeToRecoverMS = milliseconds(new(clean.Sub(began)))
		if j.Ablate == AblateRemedy {
			entry.Verdict, entry.Reason = Recovers, "traffic recovered although the remedy was switched off"
			return fmt.Errorf("%w: %s", ErrNotAsExpected, entry.Reason)
		}
		v, err = j.staysBack(part, began, clean, entry)
	} else {
		// The detectors' findings may say why.
		err = fmt.Errorf("detectors report %s; %w", framework.DescribeFindings(v.Findings()), err)
	}
	if errors.As(err, new(*unavailableError)) || errors.Is(err, probe.ErrGone) || errors.Is(err, errNotDone) {
		return err
	}
	if why := j.tooFewSince(v, Later(applied, clean)); why != "" {
		return errors.New(why)
	}
	if err != nil {
		entry.Verdict, entry.Reason, entry.TimeToRecoverMS, entry.TimeToQuietMS = DoesNotHelp, err.Error(), nil, nil
		return fmt.Errorf("%w: %w", ErrNotAsExpected, err)
	}
	entry.Verdict = Recovers
	return nil
}

// errNotDone marks a part of a step that was not carried out.
var errNotDone = errors.New("not done")

// staysBack asserts, after traffic has recovered, that there are no active findings, and that no running probe lost
// packets until then.
func (j *Judge) staysBack(part history.StepView, began, clean time.Time, entry *report.Remedy) (history.View, error) {
	v, m, there := part.At(history.NoFindings, "")
	if !there {
		return v, fmt.Errorf("%w: %w", errNotDone, failedOr(part, ErrNotOnRecord))
	}
	since, err := noFindings(v, m, began)
	if err != nil {
		return v, err
	}
	entry.TimeToQuietMS = milliseconds(new(since.Sub(began)))
	v, m, there = part.At(history.StaysBack, "")
	if !there {
		return v, fmt.Errorf("%w: %w", errNotDone, failedOr(part, ErrNotOnRecord))
	}
	timelines := v.Timelines()
	running := Running(timelines)
	if again := j.lossy(timelines, clean, m.Until, func(p probe.Probe) bool { return slices.Contains(running, p.Name) }); len(again) > 0 {
		return v, fmt.Errorf("traffic recovered, and %s lost packets again before the active findings were gone", strings.Join(again, ", "))
	}
	return v, nil
}

// tooFewSince returns a sentence if a running probe sent too few packets since a moment; otherwise empty.
func (j *Judge) tooFewSince(v history.View, since time.Time) string {
	timelines := v.Timelines()
	running := Running(timelines)
	for _, t := range timelines {
		until := v.Time.Add(-t.Probe.Timeout) // later packets have no outcome yet
		if slices.Contains(running, t.Probe.Name) && until.Sub(since) >= recoveredFor {
			if why := tooFew(t, since, until); why != "" {
				return why
			}
		}
	}
	return ""
}

// strayShare is how many packets per lost packet must arrive before the loss is no longer the incident's.
const strayShare = 9

// doesNotHelp asserts that a remedy changes nothing: for a time after it no packet of the incident's probes arrives,
// and detectors still report findings. With Script.Partial it is enough that some packets are still lost.
func (j *Judge) doesNotHelp(part history.StepView, applied time.Time, entry *report.Remedy) error {
	v, m, there := part.At(history.Watched, "")
	if !there {
		return failedOr(part, ErrNotOnRecord)
	}
	for _, t := range v.Timelines() {
		if !j.isImpacted(t.Probe) {
			continue
		}
		counts := t.Between(applied, m.Until)
		recovers := counts.Received > 0
		if j.Script.Partial {
			half := applied.Add(m.Until.Sub(applied) / 2)
			if why := tooFew(t, half, m.Until); why != "" {
				return errors.New(why)
			}
			counts = t.Between(half, m.Until)
			recovers = counts.Received > strayShare*counts.Lost // a stray loss is not the incident's share
		}
		if recovers {
			entry.Verdict = Recovers
			entry.Reason = fmt.Sprintf("%d of %d packets of %s got through", counts.Received, counts.Sent, t.Probe.Name)
			return fmt.Errorf("%w: %s", ErrNotAsExpected, entry.Reason)
		}
		if why := tooFew(t, applied, m.Until); why != "" {
			return errors.New(why)
		}
	}
	entry.Verdict = DoesNotHelp
	if j.Ablate == AblateDetector {
		return nil
	}
	at, waited, there := part.At(history.StillFound, "")
	switch {
	case !there:
		return failedOr(part, ErrNotOnRecord)
	case j.StillReported(at, waited.Began):
		return nil
	}
	if unavailable := at.UnavailableSince(m.Until); unavailable != "" {
		return &unavailableError{errors.New(unavailable)}
	}
	entry.Reason = "the detectors no longer report why, although probes lose packets"
	return fmt.Errorf("%w: %s; last seen: %s", ErrNotAsExpected, entry.Reason, framework.DescribeFindings(at.Findings()))
}

// StillReported reports whether the newest poll began at or after a moment and has an expected or transient active
// finding. One is enough: findings about a change may be over.
func (j *Judge) StillReported(v history.View, since time.Time) bool {
	last, there := v.Last()
	active := slices.DeleteFunc(slices.Clone(last.Findings), func(f detect.Finding) bool { return f.State != detect.Active })
	expected := slices.Concat(j.Script.Expected, j.Script.Transient)
	return there && !last.Began.Before(since) && len(framework.Unexpected(active, expected...)) < len(active)
}

func (j *Judge) undone(r framework.Remedy, part history.StepView) error {
	if part.Error != "" {
		return errors.New(part.Error)
	}
	if r.Undo == nil || j.Ablate == AblateRemedy {
		return nil
	}
	v, m, there := part.At(history.BrokenAgain, "")
	if !there {
		return ErrNotOnRecord
	}
	if _, err := probe.JudgeOutage(v.Timelines(), j.Impacted(), m.Until, j.Script.MinOutage, m.Bound); err != nil {
		return fmt.Errorf("undone, but the symptom did not return: %w", err)
	}
	return nil
}
