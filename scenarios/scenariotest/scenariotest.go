// Package scenariotest runs a scenario as a Go test.
package scenariotest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/docker/docker/client"
	"github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/host"
)

// Pass is `relapse run NAME` as a Go test, in a package one level below the
// catalogue: Ginkgo prints the specs, and -ginkgo.v shows each. The test fails
// unless the run's verdict is pass. It can be called once in a process.
//
// RELAPSE_REPORTS names the folder for the report; without it the report goes
// when the test ends.
func Pass(t *testing.T, s framework.Scenario) {
	t.Helper()
	expect := gomega.NewWithT(t).Expect
	output := os.Getenv("RELAPSE_REPORTS")
	if output == "" {
		output = t.TempDir()
	}
	reports, err := suite.Run(t, []framework.Scenario{s}, options(t, engine.Options{Output: output}))
	expect(err).NotTo(gomega.HaveOccurred())
	expect(reports).To(gomega.HaveLen(1))
	expect(reports[0].Verdict).To(gomega.Equal(string(framework.Pass)), "%+v", reports[0])
}

// Judge runs a scenario on a lab, and returns its report. Unlike Pass it can be
// called again and again.
func Judge(t *testing.T, s framework.Scenario, o engine.Options) report.Report {
	t.Helper()
	with := options(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), with.Timeout)
	defer cancel()
	e := engine.New(s.On(host.MemoryGiB()), suite.Labs(with), with.Options)
	e.Run(ctx, engine.UndoWithin)
	r, there := e.Report()
	if !there || e.Left() != nil {
		t.Fatalf("no report, or something is left: %v, %v", e.Broken(), e.Left())
	}
	return r
}

// Down removes a lab that Judge was told to keep.
func Down(t *testing.T, s framework.Scenario) {
	t.Helper()
	if err := suite.Labs(options(t, engine.Options{})).Down(context.WithoutCancel(t.Context()), s); err != nil {
		t.Error(err)
	}
}

// options are those of a run on this machine, for as long as the test runs.
func options(t *testing.T, o engine.Options) suite.Options {
	t.Helper()
	expect := gomega.NewWithT(t).Expect
	docker, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { docker.Close() })
	catalogue, err := images.Open("../..")
	expect(err).NotTo(gomega.HaveOccurred())
	// As in a run of the CLI: reports of two machines must not be compared by their times.
	o.Machine = host.Inspect(t.Context(), host.Needs{ImageCache: catalogue.CacheDir()}).Facts
	return suite.Options{Options: o, Docker: docker, Images: catalogue, Timeout: time.Hour}
}
