// Package scenariotest runs a scenario as a Go test.
package scenariotest

import (
	"os"
	"testing"
	"time"

	"github.com/docker/docker/client"
	"github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
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
	docker, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	expect(err).NotTo(gomega.HaveOccurred())
	defer docker.Close()
	catalogue, err := images.Open("../..")
	expect(err).NotTo(gomega.HaveOccurred())
	output := os.Getenv("RELAPSE_REPORTS")
	if output == "" {
		output = t.TempDir()
	}
	reports, err := suite.Run(t, []framework.Scenario{s}, suite.Options{
		Options: engine.Options{Output: output}, Docker: docker, Images: catalogue, Timeout: 20 * time.Minute,
	})
	expect(err).NotTo(gomega.HaveOccurred())
	expect(reports).To(gomega.HaveLen(1))
	expect(reports[0].Verdict).To(gomega.Equal(string(framework.Pass)), "%+v", reports[0])
}
