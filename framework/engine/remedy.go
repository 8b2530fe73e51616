package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/await"
)

// What a remedy did, in the report's words.
const (
	recovers    = "recovers"
	doesNotHelp = "does-not-help"
)

// remedy applies a remedy to the broken lab, sees what it does, and breaks
// the lab again for the next one.
func (v *variantRun) remedy(r framework.Remedy) func(context.Context) error {
	return func(ctx context.Context) error {
		entry := report.Remedy{Name: r.Name, Expected: doesNotHelp}
		if r.Helps {
			entry.Expected = recovers
		}
		defer func() { v.result.Remedies = append(v.result.Remedies, entry) }()

		// A remedy proves something only if the lab is broken.
		if _, err := v.probes.WaitOutage(ctx, namesOf(v.script.Hurt), time.Now(), v.script.HurtFor, relapsesWithin); err != nil {
			return fmt.Errorf("the symptom is not there any more: %w", err)
		}
		began := time.Now()
		if err := v.apply(ctx, r); err != nil {
			entry.Verdict, entry.Reason = "failed", err.Error()
			return err
		}
		var err error
		if r.Helps {
			err = v.expectRecovery(ctx, r, began, &entry)
		} else {
			err = v.expectNoRecovery(ctx, &entry)
		}
		v.keep("probes-"+slug(r.Name), v.probes.Timelines())
		_, at := v.watch.now()
		v.keep("snapshot-"+slug(r.Name), at)
		if err != nil && !errors.Is(err, errNotAsExpected) {
			return err
		}
		if err != nil && v.scenario.options.Ablate == AblateRemedy {
			v.ended = true // that the others do not help either shows nothing more
		}
		return errors.Join(err, v.undo(ctx, r))
	}
}

func (v *variantRun) apply(ctx context.Context, r framework.Remedy) error {
	if v.scenario.options.Ablate == AblateRemedy {
		return nil
	}
	if !r.ReplacesEnds {
		return r.Apply(ctx, v.run)
	}
	if err := v.stopProbes(ctx); err != nil {
		return err
	}
	if err := r.Apply(ctx, v.run); err != nil {
		return err
	}
	return v.startProbes(ctx, v.script.Gone...)
}

// expectRecovery asserts a remedy twice: traffic is back, and the detectors
// are quiet again.
func (v *variantRun) expectRecovery(ctx context.Context, r framework.Remedy, began time.Time, entry *report.Remedy) error {
	clean, err := v.probes.WaitClean(ctx, v.running(), recoveredFor, r.Bound-time.Since(began))
	if err == nil {
		ms := clean.Sub(began).Milliseconds()
		entry.TimeToRecoverMS = &ms
		err = v.watch.untilQuiet(ctx, max(time.Second, r.Bound-time.Since(began)))
	}
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		entry.Verdict, entry.Reason = doesNotHelp, err.Error()
		return fmt.Errorf("%w: %w", errNotAsExpected, err)
	}
	entry.Verdict = recovers
	return nil
}

// expectNoRecovery asserts that a remedy changes nothing: for a while not
// one packet gets through where the incident hurts, and the detectors go on
// saying why.
func (v *variantRun) expectNoRecovery(ctx context.Context, entry *report.Remedy) error {
	began := time.Now()
	end := began.Add(unhelpedFor)
	err := await.Until(ctx, "the traffic of "+unhelpedFor.String(), 100*time.Millisecond, unhelpedFor+baselineWithin,
		func(context.Context) (bool, string, error) {
			for _, name := range namesOf(v.script.Hurt) {
				t, err := v.probes.Timeline(name)
				if err != nil || !t.Known(end) {
					return false, t.String(), err
				}
			}
			return true, "", nil
		})
	if err != nil {
		return err
	}
	entry.Verdict = doesNotHelp
	for _, name := range namesOf(v.script.Hurt) {
		t, err := v.probes.Timeline(name)
		if err != nil {
			return err
		}
		if counts := t.Between(began, end); counts.Received > 0 {
			entry.Verdict = recovers
			entry.Reason = fmt.Sprintf("%d of %d packets of %s got through", counts.Received, counts.Sent, name)
			return fmt.Errorf("%w: %s", errNotAsExpected, entry.Reason)
		}
	}
	if v.scenario.options.Ablate == AblateDetector {
		return nil
	}
	// One look may be blind: a source that does not answer in time says nothing.
	err = v.watch.until(ctx, "the detectors to go on", namedWithin, func(findings []detect.Finding) bool {
		return slices.ContainsFunc(findings, func(f detect.Finding) bool { return f.State == detect.Active })
	})
	if err != nil && ctx.Err() == nil {
		entry.Reason = "the detectors fell silent, although users are hurt"
		return fmt.Errorf("%w: %s: %w", errNotAsExpected, entry.Reason, err)
	}
	return err
}

// undo goes back to the broken state, and sees that it is broken.
func (v *variantRun) undo(ctx context.Context, r framework.Remedy) error {
	if r.Undo == nil || v.scenario.options.Ablate == AblateRemedy {
		return nil
	}
	began := time.Now()
	if err := r.Undo(ctx, v.run); err != nil {
		return fmt.Errorf("undoing it: %w", err)
	}
	if _, err := v.probes.WaitOutage(ctx, namesOf(v.script.Hurt), began, v.script.HurtFor, relapsesWithin); err != nil {
		return fmt.Errorf("undone, but the symptom did not come back: %w", err)
	}
	return nil
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
