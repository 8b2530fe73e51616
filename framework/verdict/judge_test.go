package verdict

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// newVariant is the judge of a variant that has not begun, with a part switched off.
func newVariant(role framework.Role, ablate Part, checks ...framework.Check) *Judge {
	v := framework.Variant{Name: "v", Role: role, Script: func() framework.Script { return framework.Script{Baseline: checks, Aftermath: checks} }}
	c := newCase(v, Options{})
	c.Ablate = ablate
	return NewJudge(c, &history.History{}, Setting{}, nil)
}

func found(kind, object string, state detect.State) detect.Finding {
	return detect.Finding{Detector: "said", Kind: kind, Object: detect.Named(object), State: state, Says: kind + " " + object}
}

func TestVariantThatDidNotRunIsUnknown(t *testing.T) {
	for _, role := range []framework.Role{framework.Affected, framework.Fixed} {
		j := newVariant(role, "")
		j.Conclude(time.Now())
		must.Equal(t, role, [...]any{string(framework.Unknown), framework.Inconclusive}, [...]any{j.Result.Verdict, j.Outcome()})
	}
}

func answered(j *Judge, id framework.StepID, holds bool, saw string, err error) error {
	j.h.BeginStep(id)
	j.h.Do(history.Check, id.Part, func(a *history.Act) { a.Holds, a.Saw, a.Err = holds, saw, err })
	j.h.EndStep(id, nil, false)
	return j.Step(Step{id, "step"})
}

func TestChecks(t *testing.T) {
	broken := errors.New("it is broken")
	asking := framework.Check{ID: "c", Name: "fact", AsksDetectors: true, Holds: func(_ context.Context, r *framework.Run) (bool, string, error) {
		return len(r.Findings()) > 0, "no finding", nil
	}}
	fact := framework.Check{ID: "c", Name: "fact"}
	for _, test := range []struct {
		name     string
		check    framework.Check
		ablate   Part
		holds    bool
		saw      string
		err      error
		baseline string // why the baseline is bad; empty: it is good
		reported []report.Check
	}{
		{"holds", fact, "", true, "", nil, "", []report.Check{{ID: "c", Name: "fact", Holds: true}}},
		{"does not hold", fact, "", false, "they agree", nil, "fact: not as expected: they agree", []report.Check{{ID: "c", Name: "fact", Reason: "they agree"}}},
		{"asks the detectors", asking, "", false, "", nil, "fact: not as expected: no finding", []report.Check{{ID: "c", Name: "fact", Reason: "no finding"}}},
		{"asks the detectors, and the fault is off", asking, AblateFault, false, "", nil, "fact: not as expected: no finding", []report.Check{{ID: "c", Name: "fact", Reason: "no finding"}}},
		{"what cannot be asked is not known to be wrong", fact, "", false, "", broken, "", []report.Check{{ID: "c", Name: "fact", Unknown: true, Reason: "not known: it is broken"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newVariant(framework.Affected, test.ablate, test.check)
			id := framework.StepBefore("c")
			var err error
			if test.check.AsksDetectors {
				j.h.BeginStep(id)
				j.h.Mark(history.Mark{Moment: history.DetectorsSaid, Part: "c"})
				j.h.EndStep(id, nil, false)
				err = j.Step(Step{id, "step"})
			} else {
				err = answered(j, id, test.holds, test.saw, test.err)
			}
			want := [...]any{test.holds, test.baseline != "", test.baseline, !test.holds}
			must.Equal(t, err, want, [...]any{err == nil, errors.Is(err, ErrNotAsExpected), j.seen.baseline, j.ended})
			must.Equal(t, "reported", test.reported, j.Result.Checks)
		})
	}
	t.Run("asks the detectors, and the lab besides", func(t *testing.T) {
		asking := asking
		asking.Holds = func(_ context.Context, r *framework.Run) (bool, string, error) {
			return len(r.Snapshot().Routers) > 0, "", nil
		}
		_, _, err := AskDetectors(asking, newVariant(framework.Affected, "", asking).h.View())
		must.Fail(t, err, "more than findings")
	})
	t.Run("asks the detectors, which are off", func(t *testing.T) {
		j := newVariant(framework.Affected, AblateDetector, asking)
		id := framework.StepAfter("c")
		j.h.BeginStep(id)
		j.h.EndStep(id, nil, false)
		must.NoError(t, j.Step(Step{id, "step"}))
		must.Equal(t, j.Result.Checks, [...]any{false, 0}, [...]any{j.ended, len(j.Result.Checks)})
	})
	t.Run("after the fault it is no bad baseline", func(t *testing.T) {
		j := newVariant(framework.Affected, "", fact)
		must.Is(t, answered(j, framework.StepAfter("c"), false, "too much is gone", nil), ErrNotAsExpected)
		must.Equal(t, "baseline, ended", [...]any{"", false}, [...]any{j.seen.baseline, j.ended})
	})
}

func TestFindingsAreReportedOnce(t *testing.T) {
	j := newVariant(framework.Affected, "")
	lost, swapped := found("lost", "a", detect.Active), found("swapped", "b", detect.Latent)
	swapped.Owner, swapped.Announcer, swapped.Routers, swapped.Pods = "node1", "node2", []string{"tor1"}, []string{"default/web"}
	j.addFinding(swapped, "baseline", nil, nil, nil)
	elsewhere := swapped
	elsewhere.Announcer = "node3" // another announcer makes another finding
	j.addFinding(elsewhere, "baseline", nil, nil, nil)
	onset := time.Now()
	j.Result.Onset = &onset
	fault := func(f detect.Finding, at time.Duration) {
		s := history.Sighting{Finding: f, At: onset.Add(at)}
		j.addFinding(f, "fault", nil, new(time.Second+at), j.sinceOnset(s))
	}
	fault(swapped, 0) // known from the baseline
	fault(lost, 412*time.Millisecond)
	reworded := lost
	reworded.Says = "the same in other words"
	fault(reworded, time.Minute)
	early, latent := found("lost", "c", detect.Active), found("swapped", "d", detect.Latent)
	fault(early, -500*time.Millisecond) // before the first lost packet
	fault(latent, time.Second)          // no alarm
	want := []report.Finding{
		{Finding: swapped, During: "baseline"},
		{Finding: elsewhere, During: "baseline"},
		{Finding: lost, During: "fault", CameMS: new(int64(1412)), TimeToDetectMS: new(int64(412))},
		{Finding: early, During: "fault", CameMS: new(int64(500))},
		{Finding: latent, During: "fault", CameMS: new(int64(2000))},
	}
	must.Equal(t, "", want, j.Result.Findings)
}
