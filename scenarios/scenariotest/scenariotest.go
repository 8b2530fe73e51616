// Package scenariotest runs a scenario as a Go test.
package scenariotest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/must"
)

// Pass is `relapse run NAME` as a Go test, in a package one level below the catalogue: Ginkgo
// prints the specs, and -ginkgo.v shows each. The test fails unless the run's verdict is pass. It
// can be called once in a process. A slow scenario is skipped without the build tag night.
//
// RELAPSE_REPORTS names the folder for the report; without it the report goes
// when the test ends. RELAPSE_PARALLEL is how many labs may be up at the same time; by
// default as many as in relapse run.
func Pass(t *testing.T, s framework.Scenario) {
	t.Helper()
	if s.Slow && !night {
		t.Skipf("%s is slow: it runs with the build tag night", s.Incident.Name)
	}
	reports := must.Get(suite.Specs(t, s, options(t, engine.Options{Output: output(t)})))(t)
	if len(reports) != 1 {
		t.Fatalf("%d reports", len(reports))
	}
	mustPass(t, reports[0])
}

// mustPass fails a test whose run did not pass, with the run's reasons: CI often keeps only
// a test's last lines.
func mustPass(t *testing.T, r report.Report) {
	t.Helper()
	if r.Verdict == string(framework.Pass) {
		return
	}
	var why strings.Builder
	for _, v := range r.Variants {
		fmt.Fprintf(&why, "\n%s: %s, expected is %s", r.ScopeOf(v), v.Verdict, v.Expected)
		for _, reason := range v.Reasons {
			fmt.Fprintf(&why, "\n    %s", reason)
		}
	}
	for _, step := range r.Steps {
		if step.Failed != "" {
			fmt.Fprintf(&why, "\n%s: %s: %s", step.Scope, step.Name, step.Failed)
		}
	}
	t.Errorf("the run of %s is %s, not %s%s", r.Scenario, r.Verdict, framework.Pass, why.String())
}

func output(t *testing.T) string {
	if dir := os.Getenv("RELAPSE_REPORTS"); dir != "" {
		return dir
	}
	return t.TempDir()
}

// Judge runs a scenario on a lab, and returns its report. Unlike Pass it can be
// called again and again.
func Judge(t *testing.T, s framework.Scenario, o engine.Options) report.Report {
	t.Helper()
	with := options(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), with.Timeout)
	defer cancel()
	e := engine.New(s.ForMemory(host.MemoryGiB()), suite.Labs(with), with.Options)
	e.Run(ctx, engine.UndoWithin)
	r, there := e.Report()
	if !there || e.Left() != nil {
		t.Fatalf("no report, or something is left: %v, %v", e.Broken(), e.Left())
	}
	return r
}

// Alone judges one variant of a scenario, and fails the test unless want is its verdict, and run the run's. The lab is
// kept for the next call (see Down) and serves what it was made with: the images of the scenario's first variant.
func Alone(t *testing.T, s framework.Scenario, v framework.Variant, want framework.Verdict, run framework.RunVerdict) report.Report {
	t.Helper()
	v.Images = s.Variants[0].Images
	s.Variants = []framework.Variant{v}
	r := Judge(t, s, engine.Options{Output: t.TempDir(), Keep: true, Reuse: true})
	got := r.Variants[0]
	t.Logf("%s, run: %s; %q", got.Verdict, r.Verdict, got.Reasons)
	if got.Verdict != string(want) || r.Verdict != string(run) {
		t.Errorf("%s, run: %s; want %s, %s", got.Verdict, r.Verdict, want, run)
	}
	return r
}

// Ablations switches off each part of each variant of a scenario, in turn, on one lab:
// every one of them must change the verdict. It is skipped without the build tag night.
func Ablations(t *testing.T, s framework.Scenario) {
	t.Helper()
	if !night {
		t.Skip("ablations run with the build tag night")
	}
	EachPartMatters(t, s, Judge(t, s, engine.Options{Ablate: verdict.AblateAll, Output: filepath.Join(output(t), "ablations")}))
}

// EachPartMatters fails the test if the verdicts of a run with --ablate=all are not as
// expected, or one is missing.
func EachPartMatters(t *testing.T, s framework.Scenario, r report.Report) {
	t.Helper()
	var got, want []string
	for _, v := range r.Variants {
		got = append(got, fmt.Sprintf("%s without %s: %s", v.Name, v.Ablated, v.Verdict))
		t.Logf("%s: %q", got[len(got)-1], v.Reasons)
		for _, m := range v.Remedies {
			must.Equal(t, fmt.Sprintf("%s without %s: %s was not applied", v.Name, v.Ablated, m.Name), "does-not-help", m.Verdict)
		}
	}
	for _, v := range s.Runnable() {
		want = append(want, v.Name+" without fault: vacuous")
		if v.Role == framework.Affected {
			want = append(want, v.Name+" without detector: missed", v.Name+" without remedy: reproduced")
		}
	}
	must.Equal(t, "verdicts", want, got)
	must.Equal(t, "ablated", string(verdict.AblateAll), r.Ablated)
	mustPass(t, r)
}

// Down removes a lab that Judge kept (engine.Options.Keep).
func Down(t *testing.T, s framework.Scenario) {
	t.Helper()
	must.NoError(t, suite.Labs(options(t, engine.Options{})).Down(context.WithoutCancel(t.Context()), s))
}

// options are the options of a run on this machine, for as long as the test runs.
func options(t *testing.T, o engine.Options) suite.Options {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	t.Cleanup(func() { docker.Close() })
	catalogue := must.Get(images.Open("../.."))(t)
	// As in a run of the CLI: reports of two machines must not be compared by their times.
	o.Machine = host.Inspect(t.Context(), host.Needs{ImageCache: catalogue.CacheDir()}).Facts
	labs := suite.AtOnce(runtime.NumCPU(), host.MemoryGiB())
	if text := os.Getenv("RELAPSE_PARALLEL"); text != "" {
		labs = must.Get(strconv.Atoi(text))(t)
	}
	return suite.Options{Options: o, Docker: docker, Images: catalogue, Timeout: time.Hour, Labs: labs}
}
