package engine

import (
	"context"
	"errors"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/await"
)

const (
	// baselineWithin bounds the wait for a good baseline after the installation.
	baselineWithin = 30 * time.Second
	// noRecoveryFor is how long the symptom is watched after a remedy that must not help. A remedy that helps takes up
	// to 13.6 s.
	noRecoveryFor = 15 * time.Second
	// switchedOffFor bounds the wait for recovery after a remedy that is switched off.
	switchedOffFor = 15 * time.Second
	// expectedWithin bounds the wait for the detectors after the symptom, and after a precursor without a bound.
	expectedWithin = 5 * time.Second
	// noFindingsWithin bounds the wait for no active findings where none are expected: pending ones may disappear.
	noFindingsWithin = 30 * time.Second
	// precursorFor is how long a precursor is watched.
	precursorFor = 3 * time.Second
	// effectWithin bounds the wait until a fault has taken effect, which may be visible only in the next poll.
	effectWithin = 5 * time.Second
	// outcomeWithin bounds the wait until the outcome of every packet is known. That takes probe.DefaultTimeout, but
	// an agent in a guest beside three busy guests has reported nothing for half a minute.
	outcomeWithin = 45 * time.Second
	// symptomWithin bounds the wait for the symptom before a remedy, and after the undo of a remedy.
	symptomWithin = 30 * time.Second
	// fewPolls is the least number of polls with all sources in a wait for findings: comparisons over time need two.
	fewPolls = 3
	// slowPolls bounds the wait for fewPolls. On a machine with other work, a source was unavailable in each of the
	// first six polls after a fault, for 39 s.
	slowPolls = time.Minute
)

// The waits of a variant read the history, up to a bound, and mark where they ended. Reaching the bound is no error:
// the judge decides by the history up to the mark.

// pollWithin bounds the wait for the next poll of the detectors, which may begin and end late.
func (v *variantRun) pollWithin() time.Duration {
	return expectedWithin + 2*(v.c.Every()+v.reader.Timeout())
}

func (v *variantRun) untilNoFindings(
	ctx context.Context, m history.Moment, earliest time.Time, bound time.Duration, expected ...framework.Finding,
) error {
	called := v.h.Now()
	saw := v.h.View()
	err := await.Until(ctx, verdict.WaitNoFindings, v.c.Every()/4, bound, func(context.Context) (bool, string, error) {
		saw = v.h.View()
		span, enough := verdict.NoFindings(saw, earliest, called, expected...)
		return enough, span.Reason, nil
	})
	if ctx.Err() != nil {
		return err
	}
	v.recordPackets()
	v.h.MarkPolls(history.Mark{Moment: m, Began: called, Bound: bound}, saw)
	return nil
}

// untilFound waits until a condition on the history is met. If polls take seconds or sources do not answer, the wait
// goes on after its bound until fewPolls polls since a moment have read all sources.
func (v *variantRun) untilFound(
	ctx context.Context, m history.Moment, what string, since time.Time, bound time.Duration, met func(history.View) bool,
) error {
	deadline := v.h.Now().Add(bound)
	saw := v.h.View()
	err := await.Until(ctx, what, v.c.Every()/4, bound+slowPolls, func(context.Context) (bool, string, error) {
		saw = v.h.View()
		last := !saw.Time.Before(deadline) && saw.WholePollsSince(since) >= fewPolls
		return met(saw) || last, framework.DescribeFindings(saw.Findings()), nil
	})
	if ctx.Err() != nil {
		return err
	}
	v.h.MarkPolls(history.Mark{Moment: m, Began: since, Bound: bound}, saw)
	return nil
}

// untilExpected waits for a poll that began at or after a moment and has all expected findings.
func (v *variantRun) untilExpected(ctx context.Context, expected []framework.Finding, since time.Time, within time.Duration) error {
	if v.c.NothingExpected(expected) {
		return nil
	}
	bound := within + v.c.Every() + v.reader.Timeout()
	return v.untilFound(ctx, history.ExpectedFound, verdict.WaitExpected(expected), since, bound, func(saw history.View) bool {
		return verdict.FoundExpected(saw, expected, since)
	})
}

// untilWatched waits until the outcome of every packet up to a moment, which may be in the future, is known, and
// for a poll since that moment.
func (v *variantRun) untilWatched(ctx context.Context, until time.Time) error {
	if err := v.UntilKnown(ctx, until); err != nil {
		return err
	}
	if err := v.untilPolled(ctx, until); err != nil {
		return err
	}
	v.MarkPackets(history.Mark{Moment: history.Watched, Until: until})
	return nil
}

func (v *variantRun) untilPolled(ctx context.Context, moment time.Time) error {
	return await.Until(ctx, "a poll of the detectors", v.c.Every()/4, v.pollWithin()+slowPolls, func(context.Context) (bool, string, error) {
		last, _ := v.h.View().Last()
		return !last.Began.Before(moment), "the last one began at " + last.Began.Format(time.TimeOnly), nil
	})
}

// untilLost waits until each probe of the incident has lost packets that were sent at or after a moment.
func (v *variantRun) untilLost(ctx context.Context, m history.Moment, since time.Time) error {
	_, err := v.probes.WaitOutage(ctx, v.c.Impacted(), v.h.Monotonic(since), v.c.Script.MinOutage, symptomWithin)
	if ctx.Err() == nil {
		v.MarkPackets(history.Mark{Moment: m, Until: since, Bound: symptomWithin})
	}
	return err
}

// ask makes a check until it holds or its bound has passed.
func (v *variantRun) ask(ctx context.Context, c framework.Check) error {
	if c.AsksDetectors {
		return v.askDetectors(ctx, c)
	}
	v.h.Do(history.Check, c.ID, func(a *history.Act) {
		answer := func(ctx context.Context) (bool, string, error) {
			holds, saw, err := v.answer(ctx, c)
			holds = holds && err == nil
			if ctx.Err() == nil { // an answer that the bound cut short is ignored
				a.Err = err
			}
			return holds, saw, err
		}
		// The bound does not apply to the first attempt: it may be zero.
		if a.Holds, a.Saw, _ = answer(ctx); a.Holds || c.Bound == 0 {
			return
		}
		askAgain(ctx, a, c.Name, c.Bound, answer)
	})
	return ctx.Err()
}

// askAgain asks until the answer is yes or a bound has passed, and notes the last answer.
func askAgain(ctx context.Context, a *history.Act, what string, bound time.Duration, answer await.Condition) {
	err := await.Until(ctx, what, 100*time.Millisecond, bound, answer)
	timeout, late := errors.AsType[*await.TimeoutError](err)
	switch {
	case err == nil:
		a.Holds, a.Err = true, nil
	case late:
		a.Saw = timeout.Saw
	default:
		a.Err = err
	}
}

func (v *variantRun) askDetectors(ctx context.Context, c framework.Check) error {
	if v.c.Ablate == verdict.AblateDetector {
		return nil
	}
	saw := v.h.View()
	answer := func(context.Context) (bool, string, error) {
		saw = v.h.View()
		return verdict.AskDetectors(c, saw)
	}
	if holds, _, _ := answer(ctx); !holds && c.Bound > 0 {
		_ = await.Until(ctx, c.Name, 100*time.Millisecond, c.Bound, answer) // the judge asks once more
	}
	v.h.MarkPolls(history.Mark{Moment: history.DetectorsSaid, Part: c.ID}, saw)
	return ctx.Err()
}

// answer makes a check once, on a snapshot that began after the call and has all sources of the check.
func (v *variantRun) answer(ctx context.Context, c framework.Check) (holds bool, saw string, err error) {
	if len(c.Reads) == 0 {
		return c.Holds(ctx, v.run)
	}
	asked := *v.run
	began := v.h.Now()
	what, bound := "a poll that shows whether "+c.Name, v.pollWithin()+slowPolls
	err = await.Until(ctx, what, v.c.Every()/4, bound, func(context.Context) (bool, string, error) {
		at := v.run.Snapshot().Only(c.Reads...)
		if v.h.Wall(at.Time).Before(began) {
			return false, "no poll has begun since", nil
		}
		asked.Snapshot = func() snapshot.Snapshot { return at }
		unavailable := at.Unavailable()
		return len(unavailable) == 0, snapshot.Sentences(unavailable), nil
	})
	if err != nil {
		return false, "", err
	}
	return c.Holds(ctx, &asked)
}

// imagesWithin bounds one list of pods from a busy API server.
const imagesWithin = time.Minute

func (v *variantRun) readImages(ctx context.Context) error {
	v.h.Do(history.Images, "", func(a *history.Act) {
		reader, err := v.lane.lab.Open(ctx, []snapshot.Source{snapshot.RunningImages}, v.others())
		if err != nil {
			a.Err = err
			return
		}
		err = await.Until(ctx, "the images of the pods", v.c.Every(), imagesWithin, func(ctx context.Context) (bool, string, error) {
			s := reader.Collect(ctx).Only(snapshot.RunningImages)
			a.Images = s.ImagesInUse()
			unavailable := s.Unavailable()
			return len(unavailable) == 0, snapshot.Sentences(unavailable), nil
		})
		a.Err = errors.Join(err, reader.Close())
	})
	return ctx.Err()
}
