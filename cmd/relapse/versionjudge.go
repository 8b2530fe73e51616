package main

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
)

// judge runs a scenario's script on one version after the other, on one lab.
type judge struct {
	oneLab
	at     func(version string) (framework.Scenario, error)
	builds func(version string) error
}

// judge tells what a version is. The error is for what is not the version's fault,
// and ends the search.
func (j *judge) judge(ctx context.Context, version string) (bisectionStep, error) {
	step := bisectionStep{Version: version, Outcome: bisect.Skipped}
	began := time.Now()
	u, err := j.at(version)
	if err != nil {
		return step, err
	}
	if err := j.builds(version); err != nil { // where a search goes on, the catalogue has not heard of it
		step.Why, step.err = "no recipe builds it", err
		return step, nil
	}
	labs := suite.Labs(j.options)
	if _, _, err := labs.Prepare(ctx, u, u.Variants); err != nil {
		var missing *images.NotPublishedError
		var build *images.BuildError
		switch {
		case errors.Is(err, syscall.ENOSPC):
			return step, err
		case errors.As(err, &missing):
			step.Why, step.err = "not published", err
			if missing.Unverified != "" {
				step.Why = "not in Go's checksum database"
			}
			return step, nil
		case errors.As(err, &build):
			step.Why, step.err = "not built: "+build.Complaint(), err
			return step, nil
		}
		return step, err
	}
	built := time.Since(began)
	rounds, luck := 0, 1.0
	for {
		r, err := j.run(ctx, u)
		if err != nil {
			return step, err
		}
		v := r.Variants[0]
		step.Verdict, step.Why = v.Verdict, strings.Join(v.Reasons, "; ")
		step.Report = filepath.Join(r.Scenario, r.Run, page.Name)
		step.TookMS, step.BuiltMS = (time.Since(began) - built).Milliseconds(), built.Milliseconds()
		step.Outcome = outcomeOfVerdict(framework.Verdict(v.Verdict))
		if step.Outcome != bisect.Unaffected || v.Race == nil {
			return step, nil
		}
		rounds += v.Race.Rounds
		luck = math.Pow(framework.Luck(raceOfScript(u).Rates[v.Race.Accelerator]...), float64(rounds))
		step.Rounds, step.Luck = rounds, luck
		if luck < framework.WrongStep {
			return step, nil
		}
	}
}

// outcomeOfVerdict is what a verdict says of a version.
func outcomeOfVerdict(v framework.Verdict) bisect.Outcome {
	switch v {
	case framework.Reproduced, framework.Missed:
		return bisect.Affected
	case framework.Prevented, framework.Refused:
		return bisect.Unaffected
	}
	return bisect.Skipped
}

func raceOfScript(s framework.Scenario) *framework.Race { return s.Variants[0].Script().Race }

// run runs a version once. A run that takes too long says nothing of the version.
func (j *judge) run(ctx context.Context, u framework.Scenario) (report.Report, error) {
	e := j.oneLab.run(ctx, u, u.Incident.Name+" "+u.Variants[0].Name, !u.NewLabs)
	r, there := e.Report()
	if ctx.Err() != nil {
		return r, errors.Join(engine.ErrInterrupted, e.Left())
	}
	judged := there && outcomeOfVerdict(framework.Verdict(r.Variants[0].Verdict)) != bisect.Skipped
	if e.Broken() != nil && !judged {
		return r, errors.Join(e.Broken(), e.Left())
	}
	return r, e.Left()
}
