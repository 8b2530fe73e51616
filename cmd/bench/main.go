// Command bench measures what relapse has budgets for: it runs the CLI the
// way people do, and compares how long that takes, and how much memory the
// CLI needs, with what it may. It removes the labs of the scenarios that it
// measures, before and after. What it measured it writes into figures.Path, in
// place of what was measured before; it runs in the root of the repository.
//
// Exit status: 0 all within their budgets; 1 some were not, or a run did not
// pass.
package main

import (
	"cmp"
	"context"
	"encoding/json"
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

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/host"
)

// program is the CLI under measurement, as make build leaves it.
const program = "bin/relapse"

// budget is what a scenario may take on 2 cores, with its images built.
type budget struct {
	whole  time.Duration // all variants, on a lab of their own
	single time.Duration // one affected variant, on a lab of its own
	reuse  time.Duration // one variant, on a lab that is there
	lab    time.Duration // until the lab is up
	detect time.Duration // from the first lost probe to the first alarm after it
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
	// Without KVM: a fixed kube-proxy stands a load for two minutes, and one that was
	// restarted must have run for a minute before it can hang again. healthz says 20 s after the last sync that it is late, and only then
	// are goroutines asked for; the first packet may be lost before.
	"ipvs-deadlock": {
		whole: 320 * time.Second, single: 5 * time.Minute, reuse: 6 * time.Minute,
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
	before, err := figures.Read(figures.Path) // a file that cannot be read is told before an hour of work
	if err != nil {
		return err
	}
	output, err := os.MkdirTemp("", "relapse-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(output)
	m := &measurement{output: output}
	for _, s := range scenarios.All {
		limits, ok := budgets[s.Incident.Name]
		if !ok {
			continue
		}
		if err := m.scenario(ctx, s, limits); err != nil {
			// The last word is the lab's: it must not stay.
			_, _, down := m.relapse(context.WithoutCancel(ctx), "down", s.Incident.Name)
			return errors.Join(err, down)
		}
	}
	m.sample("", "peak memory of the CLI", "MiB", budgetOf(float64(memory)/(1<<20)), float64(m.peak)/(1<<20))
	file := before.Update(m.machine, m.summary(time.Now())...)
	return errors.Join(file.Write(figures.Path), m.print())
}

// measurement collects samples.
type measurement struct {
	output  string // folder for the reports
	peak    int64  // bytes, of all runs
	machine string // as the reports tell of it
	series  []*series
}

// series is the samples of one figure.
type series struct {
	figure  figures.Figure // all but what the samples come to
	samples []float64
}

// sample adds a sample to the figure of that scenario and name, which it makes
// if there is none.
func (m *measurement) sample(scenario, name, unit string, budget *float64, value float64) {
	for _, s := range m.series {
		if s.figure.Scenario == scenario && s.figure.Name == name {
			s.samples = append(s.samples, value)
			return
		}
	}
	figure := figures.Figure{Scenario: scenario, Name: name, Unit: unit, Budget: budget}
	m.series = append(m.series, &series{figure: figure, samples: []float64{value}})
}

// duration adds a sample in seconds. A budget of zero means that there is none.
func (m *measurement) duration(scenario, name string, budget, value time.Duration) {
	var seconds *float64
	if budget > 0 {
		seconds = budgetOf(budget.Seconds())
	}
	m.sample(scenario, name, "s", seconds, value.Seconds())
}

func budgetOf(value float64) *float64 { return &value }

// summary returns what the samples come to, as of a day.
func (m *measurement) summary(day time.Time) []figures.Figure {
	var all []figures.Figure
	for _, s := range m.series {
		figure := s.figure
		figure.Date, figure.Measured = day.Format(time.DateOnly), figures.Summarize(s.samples)
		all = append(all, figure)
	}
	return all
}

// scenario measures one scenario: all variants on a lab of their own, each
// affected variant on a lab of its own, each variant on a lab that is there.
func (m *measurement) scenario(ctx context.Context, s framework.Scenario, limits budget) error {
	name := s.Incident.Name
	// A lab that comes and goes leaves the images in the cache and in Docker.
	for _, args := range [][]string{{"down", name}, {"up", name}, {"down", name}} {
		if _, _, err := m.relapse(ctx, args...); err != nil {
			return err
		}
	}
	took, r, err := m.run(ctx, name)
	if err != nil {
		return err
	}
	m.duration(name, "all variants", limits.whole, took)
	m.duration(name, "lab is up", limits.lab, milliseconds(r.Timings.Lab))
	if err := m.variants(name, r, limits); err != nil {
		return err
	}
	for _, v := range s.Runnable(nil) {
		if v.Role != framework.Affected {
			continue
		}
		took, r, err := m.run(ctx, name, "--variant", v.Name)
		if err != nil {
			return err
		}
		m.duration(name, "one affected variant, lab included", limits.single, took)
		m.duration(name, "lab is up", limits.lab, milliseconds(r.Timings.Lab))
		if err := m.variants(name, r, limits); err != nil {
			return err
		}
	}

	if _, _, err := m.relapse(ctx, "up", name); err != nil {
		return err
	}
	for _, v := range s.Runnable(nil) {
		took, r, err := m.run(ctx, name, "--reuse", "--keep", "--variant", v.Name)
		if err != nil {
			return err
		}
		m.duration(name, "one variant on a running lab", limits.reuse, took)
		if err := m.variants(name, r, limits); err != nil {
			return err
		}
	}
	_, _, err = m.relapse(ctx, "down", name)
	return err
}

// variants takes the samples that are in a report: how long detection took and
// each recovery, and how many packets a fixed version lost, which may lose none.
func (m *measurement) variants(scenario string, r report.Report, limits budget) error {
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, later := firstFinding(v); later {
				m.duration(scenario, "time to detect", limits.detect, detected)
			}
		case framework.Fixed:
			m.sample(scenario, "packets lost with "+v.Name, "packets", budgetOf(0), float64(v.Packets.Lost))
		}
		for _, remedy := range v.Remedies {
			if remedy.TimeToRecoverMS != nil {
				m.duration(scenario, "time to recover: "+remedy.Name, 0, milliseconds(*remedy.TimeToRecoverMS))
			}
		}
	}
	return nil
}

// firstFinding is how long after the first lost packet the detectors said that
// something is broken. There is no such time where they all said so before.
func firstFinding(v report.Variant) (took time.Duration, later bool) {
	for _, f := range v.Findings {
		if f.TimeToDetectMS != nil && (!later || milliseconds(*f.TimeToDetectMS) < took) {
			took, later = milliseconds(*f.TimeToDetectMS), true
		}
	}
	return took, later
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// run runs a scenario, and returns how long the CLI took and what it
// reported.
func (m *measurement) run(ctx context.Context, name string, args ...string) (time.Duration, report.Report, error) {
	took, peak, err := m.relapse(ctx, append([]string{"run", name, "--output", m.output}, args...)...)
	if err != nil {
		return took, report.Report{}, err
	}
	m.peak = max(m.peak, peak)
	r, err := report.Read(filepath.Join(report.Latest(m.output, name), "report.json"))
	if err != nil {
		return took, report.Report{}, err
	}
	m.machine, err = machineOf(r)
	return took, r, err
}

// machineOf says in a few words which machine a report is of. Neither the
// kernel's patch level nor Docker's makes another machine.
func machineOf(r report.Report) (string, error) {
	stored, err := json.Marshal(r.Machine)
	if err != nil {
		return "", fmt.Errorf("the machine in the report of %s: %w", r.Scenario, err)
	}
	var facts host.Facts
	if err := json.Unmarshal(stored, &facts); err != nil {
		return "", fmt.Errorf("the machine in the report of %s: %w", r.Scenario, err)
	}
	return fmt.Sprintf("%d CPUs, %d GiB of memory, Linux %s, Docker %s",
		facts.CPUs, facts.MemoryGiB, majorMinor(facts.Kernel), majorMinor(facts.Docker)), nil
}

// majorMinor cuts a version after its second number.
func majorMinor(version string) string {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	return major + "." + minor
}

// relapse runs the CLI to its end, and returns how long it took and the most
// memory, in bytes, that it or a program of its own held. Where it fails, its
// output is in the error.
func (m *measurement) relapse(ctx context.Context, args ...string) (time.Duration, int64, error) {
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
func (m *measurement) print() error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nFIGURE\tMIN\tMEDIAN\tMAX\tN\tBUDGET\t")
	var over []string
	for _, f := range m.summary(time.Now()) {
		name := cmp.Or(f.Scenario, "relapse") + ", " + f.Name
		limit, mark := "", ""
		if f.Budget != nil {
			limit = fmt.Sprintf("%.0f %s", *f.Budget, f.Unit)
		}
		if f.OverBudget() {
			mark, over = "over", append(over, name)
		}
		fmt.Fprintf(table, "%s\t%.4g\t%.4g\t%.4g %s\t%d\t%s\t%s\n",
			name, f.Measured.Min, *f.Measured.Median, f.Measured.Max, f.Unit, f.Measured.N, limit, mark)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(over) > 0 {
		return fmt.Errorf("over budget: %s", strings.Join(over, "; "))
	}
	return nil
}
