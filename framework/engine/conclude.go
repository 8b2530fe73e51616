package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// verdict judges the variant.
func (v *variantRun) verdict(context.Context) error {
	if v.scenario.Broken() != nil {
		return &Skipped{"there is no lab"}
	}
	v.judge()
	text := fmt.Sprintf("%s: expected %s", v.result.Verdict, v.result.Expected)
	if !v.classified() {
		text = v.result.Verdict
	}
	v.scenario.options.Progress.Note(v.label, "verdict "+text)
	judged := v.result.Verdict != string(framework.Unknown) && v.result.Verdict != string(framework.Vacuous)
	if v.result.Verdict != v.result.Expected && (v.classified() || !judged) {
		return errors.New(text)
	}
	return nil
}

func (v *variantRun) judge() {
	if v.result.Verdict != "" {
		return
	}
	verdict, why := judge(v.seen)
	v.result.Verdict = string(verdict)
	if v.result.Verdict != v.result.Expected && !slices.Contains(v.result.Reasons, why) {
		v.result.Reasons = append(v.result.Reasons, why)
	}
	if !v.began.IsZero() {
		v.result.ElapsedMS = v.clock.Now().Sub(v.began).Milliseconds()
	}
}

// restore undoes the faults, if anybody is to use the lab again, or uses it
// still.
func (v *variantRun) restore(ctx context.Context) error {
	if v.player != nil {
		known := len(v.player.missing) // that it was not undone is no matter
		defer func() { v.player.missing = v.player.missing[:known] }()
		for _, f := range slices.Backward(v.injected) {
			if err := f.Undo(ctx); err != nil && !errors.Is(err, errNotOnRecord) {
				return err
			}
		}
		return nil
	}
	if v.scenario.lab == nil || v.isBroken() {
		return &Skipped{"there is no lab"}
	}
	defer func() {
		if err := v.recorder.close(); err != nil {
			v.loses(err)
		}
	}()
	err := v.close(ctx)
	last := v == v.scenario.variants[len(v.scenario.variants)-1]
	if !last || v.lane != nil || v.scenario.options.Keep {
		v.publish()
		done := v.scenario.beginStep(v.label, "lab is put back")
		for _, f := range slices.Backward(v.injected) {
			if f.Replaced && !last {
				continue
			}
			if undoErr := f.Undo(ctx); undoErr != nil {
				err = errors.Join(err, fmt.Errorf("undoing %q: %w", f.Name, undoErr))
			}
		}
		done(err)
	}
	// What comes after a lab that is not as it was would prove nothing.
	if v.lane != nil { // nodes of other variants are as they were
		v.lane.broken = err
		return err
	}
	v.scenario.breaks(err)
	return err
}

// close ends the watching and the probes, and keeps what is worth keeping.
// It can be called more than once.
func (v *variantRun) close(ctx context.Context) error {
	if v.watch != nil {
		v.watch.Stop()
		v.keep(report.HistoryName, v.watch.told())
		v.watch = nil
	}
	// Also of components that did not come up: nothing else tells why.
	if v.run != nil && !v.logged && v.scenario.lab != nil {
		v.logged = true
		v.keepLogs(ctx)
	}
	if v.player != nil {
		return nil
	}
	err := v.stopProbes(ctx)
	if v.reader != nil {
		err = errors.Join(err, v.reader.Close())
		v.reader = nil
	}
	return err
}

// conclude returns the report, whatever the variant came to.
func (v *variantRun) conclude(ctx context.Context) report.Variant {
	if err := v.close(ctx); err != nil {
		v.fail(err.Error())
	}
	if err := v.recorder.close(); err != nil {
		v.loses(err)
	}
	// A signal between two steps makes neither of them fail. The variant is
	// unknown all the same: what was seen until then is not enough for a verdict.
	if v.result.Verdict == "" && v.seen.broken == nil {
		v.seen.broken = errors.New("the run ended before the variant was judged")
	}
	v.judge()
	return v.result
}

// outcome is what the variant means for the run. A remedy that could not be
// judged leaves a run without its proof; where something failed besides, it
// fails.
func (v *variantRun) outcome() framework.RunVerdict {
	unjudged := slices.ContainsFunc(v.result.Remedies, func(r report.Remedy) bool { return r.Verdict == notJudged })
	failed := v.failures > 0
	if v.mustChange { // that steps fail is what it is there for
		failed = slices.ContainsFunc(v.result.Remedies, func(r report.Remedy) bool { return r.Verdict != r.Expected })
	}
	switch {
	case v.result.Verdict == string(framework.Unknown):
		return framework.Inconclusive
	case v.result.Verdict == string(framework.Vacuous) && v.result.Expected != v.result.Verdict:
		return framework.Inconclusive
	case !v.classified():
		return framework.Pass // it could be judged
	case v.result.Verdict != v.result.Expected:
		return framework.Fail
	case v.mustChange && v.ablate == AblateFault && v.seen.held == "": // vacuous for another reason
		return framework.Inconclusive
	case unjudged && (v.mustChange || !failed):
		return framework.Inconclusive
	case failed:
		return framework.Fail
	}
	return framework.Pass
}

// keepLogs keeps the logs of all that runs in the lab for the variant.
func (v *variantRun) keepLogs(ctx context.Context) {
	logs, err := v.scenario.lab.Logs(ctx, v.scenario.logsSince(), v.others())
	for name, text := range logs {
		v.keep("log-"+name, text)
	}
	if err != nil {
		v.scenario.options.Log.Warn("not all logs could be kept", "error", err)
	}
}

// keepFailure keeps what tells why a step failed.
func (v *variantRun) keepFailure(ctx context.Context) {
	if v.run == nil {
		return
	}
	if v.probes != nil {
		v.keep("probes-at-failure", v.probes.Timelines())
	}
	if v.watch != nil {
		findings, at := v.watch.now()
		v.keep("snapshot-at-failure", at)
		v.keep("findings-at-failure", findings)
	}
}
