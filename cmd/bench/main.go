// Command bench measures what relapse has budgets for: it runs the CLI the
// way people do, and compares how long that takes, and how much memory the
// CLI needs, with what it may. It removes the labs of the scenarios that it
// measures, before and after.
//
// Exit status: 0 all within their budgets; 1 some were not, or a run did not
// pass.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios"
)

// program is the CLI under measurement, as make build leaves it.
const program = "bin/relapse"

// budget is what a scenario may take on 2 cores, with its images built.
type budget struct {
	whole  time.Duration // all variants, on a lab of their own
	single time.Duration // one affected variant, on a lab of its own
	reuse  time.Duration // one variant, on a lab that is there
	lab    time.Duration // until the lab is up
	detect time.Duration // from the first lost probe to the first finding
}

// budgets are by scenario; a scenario that has none is not measured.
var budgets = map[string]budget{
	"node-drain": {
		whole: 150 * time.Second, single: 75 * time.Second, reuse: 40 * time.Second,
		lab: 45 * time.Second, detect: time.Second,
	},
	"masquerade-drift": {
		whole: 180 * time.Second, single: 90 * time.Second, reuse: 60 * time.Second,
		lab: 45 * time.Second, detect: time.Second,
	},
	// Without KVM: each time that kube-proxy is to hang it must have run for a
	// minute. healthz says 20 s after the last sync that it is late, and only then
	// are goroutines asked for; the first packet may be lost before.
	"ipvs-deadlock": {
		whole: 10 * time.Minute, single: 7 * time.Minute, reuse: 6 * time.Minute,
		lab: time.Minute, detect: 20 * time.Second,
	},
	"unpinned-image": {
		whole: 150 * time.Second, single: 150 * time.Second, reuse: 60 * time.Second,
		lab: 45 * time.Second, detect: time.Second,
	},
	"added-nic": {
		whole: 180 * time.Second, single: 120 * time.Second, reuse: 75 * time.Second,
		lab: 45 * time.Second, detect: time.Second,
	},
}

// memory is what the CLI may hold at its peak, whatever it runs.
const memory = 300 << 20 // bytes

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func bench(ctx context.Context) error {
	output, err := os.MkdirTemp("", "relapse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(output)
	b := &measurement{output: output}
	for _, s := range scenarios.All {
		may, ok := budgets[s.Incident.Name]
		if !ok {
			continue
		}
		if err := b.scenario(ctx, s, may); err != nil {
			// The last word is the lab's: it must not stay.
			_, _, down := b.relapse(context.WithoutCancel(ctx), "down", s.Incident.Name)
			return errors.Join(err, down)
		}
	}
	b.add("peak memory of the CLI", float64(b.peak)/(1<<20), float64(memory)/(1<<20), "MiB")
	return b.print()
}

// measurement collects figures.
type measurement struct {
	output  string // folder for the reports
	peak    int64  // bytes, of all runs
	figures []figure
}

// figure is one line of the table.
type figure struct {
	name          string
	measured, may float64
	unit          string
}

func (b *measurement) add(name string, measured, may float64, unit string) {
	b.figures = append(b.figures, figure{name, measured, may, unit})
}

func (b *measurement) duration(name string, measured, may time.Duration) {
	b.add(name, measured.Seconds(), may.Seconds(), "s")
}

// scenario measures one scenario.
func (b *measurement) scenario(ctx context.Context, s framework.Scenario, may budget) error {
	name := s.Incident.Name
	// A lab that comes and goes leaves the images in the cache and in Docker.
	for _, args := range [][]string{{"down", name}, {"up", name}, {"down", name}} {
		if _, _, err := b.relapse(ctx, args...); err != nil {
			return err
		}
	}
	took, r, err := b.run(ctx, name)
	if err != nil {
		return err
	}
	lab := milliseconds(r.Timings.Lab)
	b.duration(name+", all variants", took, may.whole)
	for _, v := range r.Variants {
		if v.Role == string(framework.Affected) {
			detected, err := firstFinding(v)
			if err != nil {
				return err
			}
			b.duration(name+", "+v.Name+": time to detect", detected, may.detect)
		}
	}
	for _, v := range s.Runnable(nil) {
		if v.Role != framework.Affected {
			continue
		}
		took, r, err := b.run(ctx, name, "--variant", v.Name)
		if err != nil {
			return err
		}
		lab = max(lab, milliseconds(r.Timings.Lab))
		b.duration(name+", "+v.Name+" alone", took, may.single)
	}
	b.duration(name+", lab is up", lab, may.lab)

	if _, _, err := b.relapse(ctx, "up", name); err != nil {
		return err
	}
	for _, v := range s.Runnable(nil) {
		took, _, err := b.run(ctx, name, "--reuse", "--keep", "--variant", v.Name)
		if err != nil {
			return err
		}
		b.duration(name+", "+v.Name+" on a running lab", took, may.reuse)
	}
	_, _, err = b.relapse(ctx, "down", name)
	return err
}

// firstFinding is how long the detectors took to say that something is
// broken.
func firstFinding(v report.Variant) (time.Duration, error) {
	var first *int64
	for _, f := range v.Findings {
		if f.State == "active" && f.TimeToDetectMS != nil && (first == nil || *f.TimeToDetectMS < *first) {
			first = f.TimeToDetectMS
		}
	}
	if first == nil {
		return 0, fmt.Errorf("the report of %s has no active finding with a time", v.Name)
	}
	return milliseconds(*first), nil
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// run runs a scenario, and returns how long the CLI took and what it
// reported.
func (b *measurement) run(ctx context.Context, name string, args ...string) (time.Duration, report.Report, error) {
	took, peak, err := b.relapse(ctx, append([]string{"run", name, "--output", b.output}, args...)...)
	if err != nil {
		return took, report.Report{}, err
	}
	b.peak = max(b.peak, peak)
	r, err := report.Read(filepath.Join(report.Latest(b.output, name), "report.json"))
	return took, r, err
}

// relapse runs the CLI to its end, and returns how long it took and the most
// memory, in bytes, that it or a program of its own held. Where it fails, its
// output is in the error.
func (b *measurement) relapse(ctx context.Context, args ...string) (time.Duration, int64, error) {
	line := program + " " + strings.Join(args, " ")
	fmt.Println(line)
	cmd := exec.CommandContext(ctx, program, args...)
	// The CLI undoes what it did before it ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		return took, 0, fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return took, usage.Maxrss << 10, nil // getrusage(2): in KiB
}

// print prints the figures, and returns an error if one is over its budget.
func (b *measurement) print() error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nFIGURE\tMEASURED\tBUDGET\t")
	var over []string
	for _, f := range b.figures {
		mark := ""
		if f.measured > f.may {
			mark, over = "over", append(over, f.name)
		}
		fmt.Fprintf(table, "%s\t%.1f %s\t%.0f %s\t%s\n", f.name, f.measured, f.unit, f.may, f.unit, mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(over) > 0 {
		return fmt.Errorf("over budget: %s", strings.Join(over, "; "))
	}
	return nil
}
