// Package versionlab runs the script of an incident on one version after another.
package versionlab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
)

// Lab runs a script on one version of a component after another, on one lab.
type Lab struct {
	Lab       *keptlab.Lab
	Catalogue *images.Catalogue
	Scenario  framework.Scenario
	// At returns the scenario with one variant, which runs a version.
	At func(version string) (framework.Scenario, error)
	// Required are versions that must be published. For one that is not, Judge returns an *images.NotPublishedError.
	Required []string
}

// Builds returns why a version cannot be built for the script: an *images.UnknownVersionError for each image without
// a recipe, and a *suite.FormError for each that is built in another form.
func (l Lab) Builds(version string) error {
	s, err := l.At(version)
	if err != nil {
		return err
	}
	return suite.Know(l.Catalogue, s, false, s.Variants...)
}

// Judge runs the script on a version. In a probabilistic incident it repeats the run until the version is affected, or
// until an affected version would have survived all trials with a probability below framework.MaxErrorRate. The error
// is a failure that says nothing about the version, such as engine.ErrInterrupted.
func (l Lab) Judge(ctx context.Context, version string) (bisect.Step, error) {
	step := bisect.Step{Version: version, Outcome: bisect.Skipped}
	began := time.Now()
	s, err := l.At(version)
	if err != nil {
		return step, err
	}
	if err := l.Builds(version); err != nil { // a qualification does not check it before
		step.Why, step.Err = "no recipe builds it", err
		return step, nil
	}
	if err := l.Lab.Prepare(ctx, s); err != nil {
		if step.Why = l.unavailable(version, err); step.Why == "" {
			return step, err
		}
		step.Err = err
		return step, nil
	}
	built := time.Since(began)
	rounds := 0
	for {
		r, err := l.run(ctx, s)
		if err != nil {
			return step, err
		}
		v := r.Variants[0]
		step.Verdict, step.Why = v.Verdict, strings.Join(v.Reasons, "; ")
		step.Report = filepath.Join(r.Scenario, r.Run, page.Name)
		step.TookMS, step.BuiltMS = (time.Since(began) - built).Milliseconds(), built.Milliseconds()
		step.Outcome = bisect.OutcomeOf(framework.Verdict(v.Verdict))
		if step.Outcome != bisect.Unaffected || v.Race == nil {
			return step, nil
		}
		rounds += v.Race.Rounds
		rates := s.Variants[0].Script().Trials.On(v.Race.Accelerator)
		step.Rounds, step.Luck = rounds, math.Pow(framework.Luck(rates...), float64(rounds))
		if step.Luck < framework.MaxErrorRate {
			return step, nil
		}
		if step.Luck == 1 {
			return step, fmt.Errorf("%s: no affected version was ever struck, by the recorded rates: no number of trials tells", version)
		}
	}
}

// Down removes what is left of the lab.
func (l Lab) Down() error { return l.Lab.Down(l.Scenario) }

// unavailable is why a version's images cannot be made; empty if err has another reason, or the version is required.
func (l Lab) unavailable(version string, err error) string {
	missing, unpublished := errors.AsType[*images.NotPublishedError](err)
	build, unbuilt := errors.AsType[*images.BuildError](err)
	switch {
	case errors.Is(err, syscall.ENOSPC), unpublished && slices.Contains(l.Required, version):
		return ""
	case unpublished && missing.Unverified != "":
		return "not in Go's checksum database"
	case unpublished:
		return "not published"
	case unbuilt:
		return "not built: " + build.Complaint()
	}
	return ""
}

func (l Lab) run(ctx context.Context, s framework.Scenario) (report.Report, error) {
	run := l.Lab.Run(ctx, s, s.Incident.Name+" "+s.Variants[0].Name, !s.NewLabs)
	if ctx.Err() != nil {
		return run.Report, errors.Join(engine.ErrInterrupted, run.Left)
	}
	judged := run.Reported && bisect.OutcomeOf(framework.Verdict(run.Report.Variants[0].Verdict)) != bisect.Skipped
	if run.Broken != nil && !judged {
		return run.Report, errors.Join(run.Broken, run.Left)
	}
	return run.Report, run.Left
}
