//go:build lab

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
)

// BenchmarkScenario runs the command as its users do, once for each way, and
// reports the figures that the budgets speak of. Images must have been built:
// they are not what it measures. The order matters: the reused lab is the one
// that the run before it has kept.
func BenchmarkScenario(b *testing.B) {
	for _, way := range []struct {
		name string
		args []string
	}{
		{"node-drain/whole", []string{"run", "node-drain"}},
		{"node-drain/affected", []string{"run", "node-drain", "--variant", "cilium-1.11.6", "--keep"}},
		{"node-drain/affected-reused", []string{"run", "node-drain", "--variant", "cilium-1.11.6", "--reuse", "--keep"}},
		{"node-drain/fixed-reused", []string{"run", "node-drain", "--variant", "cilium-1.12.0", "--reuse"}},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				measure(b, way.args)
			}
		})
	}
}

func measure(b *testing.B, args []string) {
	dir := b.TempDir()
	cmd := exec.Command(filepath.Join("..", "..", "bin", "relapse"), append(args, "--output", dir)...)
	cmd.Stderr = os.Stderr
	if out, err := cmd.Output(); err != nil {
		b.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	r, err := report.Read(filepath.Join(dir, "node-drain", "report.json"))
	if err != nil {
		b.Fatal(err)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	b.ReportMetric(float64(usage.Maxrss)/1024, "peak-MiB")
	b.ReportMetric(float64(r.Timings.Lab)/1000, "lab-s")
	b.ReportMetric(float64(r.Timings.Total)/1000, "total-s")
	b.ReportMetric(0, "ns/op") // once says nothing
	for _, v := range r.Variants {
		b.ReportMetric(float64(v.ElapsedMS)/1000, v.Role+"-s")
		for _, f := range v.Findings {
			if f.State == "active" && f.TimeToDetectMS != nil {
				b.ReportMetric(float64(*f.TimeToDetectMS), "detect-ms")
			}
		}
	}
}
