// Command bench measures what relapse has budgets for: it runs the CLI the
// way people do, and compares how long that takes, and how much memory the
// CLI needs, with what it may. It removes the labs of the scenarios that it
// measures, before and after. What it measured it writes into figures.Path, in
// place of what was measured before; it runs in the root of the repository.
//
// With folders of reports as arguments, such as the one that make test-all has
// written, it runs nothing: it takes the figures of the whole runs that are there
// and that passed, but for those beside other work.
//
// With -only it measures only what is named: scenarios, and what it takes to build,
// bisect and qualify other versions.
//
// Exit status: 0 all within their budgets; 1 some were not, or a run did not
// pass.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/metrics"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
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
		whole: 90 * time.Second, single: 75 * time.Second, reuse: 40 * time.Second,
		lab: 14 * time.Second, detect: time.Second,
	},
	"masquerade-drift": {
		whole: 180 * time.Second, single: 90 * time.Second, reuse: 60 * time.Second,
		lab: 45 * time.Second, detect: time.Second,
	},
	// A fixed kube-proxy stands a load for two minutes, and one that was restarted
	// must have run for a minute before it can hang again.
	"ipvs-deadlock": {
		whole: 320 * time.Second, single: 5 * time.Minute, reuse: 5 * time.Minute,
		lab: time.Minute, detect: 7 * time.Second,
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
	only := flag.String("only", "", "measure only these, by `NAME,NAME`: scenarios, build, bisect and qualify")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func bench(ctx context.Context, only string) error {
	before, err := figures.Read(figures.Path) // a file that cannot be read is told before an hour of work
	if err != nil {
		return err
	}
	m := &measurement{}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	known := slices.Sorted(maps.Keys(budgets))
	for _, c := range commands {
		known = append(known, c.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("-only: there is nothing to measure of %q%s", name, topology.Nearest(name, known))
		}
	}
	if folders := flag.Args(); len(folders) > 0 {
		err = m.stored(folders)
	} else {
		err = m.all(ctx, names)
	}
	if err != nil {
		return err
	}
	file := before.Update(m.machine, m.summary()...)
	return errors.Join(file.Write(figures.Path), m.print())
}

// stored takes the samples of whole runs from folders of reports.
func (m *measurement) stored(folders []string) error {
	for _, folder := range folders {
		for _, s := range scenarios.All {
			// Not by the link "latest", which leads to one of them.
			runs, err := filepath.Glob(filepath.Join(folder, s.Incident.Name, "[0-9]*", "report.json"))
			if err != nil {
				return err
			}
			for _, run := range runs {
				r, err := report.Read(run)
				if err != nil {
					return err
				}
				if r.Verdict != string(framework.Pass) || !isWhole(s, r) || r.CPU.Slowed() {
					continue
				}
				fmt.Println(run)
				if m.machine, err = machineOf(r); err != nil {
					return err
				}
				m.whole(r, milliseconds(r.Timings.Total-r.Timings.Images))
			}
		}
	}
	if len(m.series) == 0 {
		return fmt.Errorf("no whole run that passed in %s", strings.Join(folders, ", "))
	}
	return nil
}

// isWhole tells whether a report is of every variant that can run on such a
// machine, each once and with all its parts.
func isWhole(s framework.Scenario, r report.Report) bool {
	var ran, all []string
	for _, v := range r.Variants {
		ran = append(ran, v.Name)
		if v.Repeats != nil {
			return false
		}
	}
	for _, v := range s.Runnable(nil) {
		all = append(all, v.Name)
	}
	return r.Ablated == "" && slices.Equal(ran, all)
}

// all measures what is named, everything if nothing is.
func (m *measurement) all(ctx context.Context, names []string) (err error) {
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	if m.output, err = os.MkdirTemp("", "relapse-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.output)
	m.machine = machine(host.Inspect(ctx, host.Needs{}).Facts)
	for _, s := range scenarios.All {
		limits, ok := budgets[s.Incident.Name]
		if !ok || !wanted(s.Incident.Name) {
			continue
		}
		if err := m.scenario(ctx, s, limits); err != nil {
			// The last word is the lab's: it must not stay.
			_, _, down := m.relapse(context.WithoutCancel(ctx), "down", s.Incident.Name)
			return errors.Join(err, down)
		}
	}
	for _, c := range commands {
		if !wanted(c.name) {
			continue
		}
		if err := c.measure(m, ctx); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		return nil // the peak is that of all of them
	}
	m.sample(figures.Figure{Name: "peak memory of the CLI", Unit: "MiB", Budget: new(float64(memory) / (1 << 20))}, float64(m.peak)/(1<<20))
	return nil
}

// measurement collects samples.
type measurement struct {
	output  string // folder for the reports of its own runs
	peak    int64  // bytes, of all runs
	machine string // as the reports tell of it
	series  []*series

	// environment is what the CLI is given beside this program's, and judged are exit
	// statuses other than 0 that are no failure of its.
	environment []string
	judged      []int
}

// series is the samples of one figure.
type series struct {
	figure  figures.Figure // all but what the samples come to
	samples []float64
}

// sample adds a sample to a figure, which is new where there is none of its
// scenario and name.
func (m *measurement) sample(figure figures.Figure, value float64) {
	for _, s := range m.series {
		if s.figure.Scenario == figure.Scenario && s.figure.Name == figure.Name && s.figure.Note == figure.Note {
			s.samples = append(s.samples, value)
			s.figure.Date = max(s.figure.Date, figure.Date)
			return
		}
	}
	figure.Date = cmp.Or(figure.Date, time.Now().Format(time.DateOnly))
	m.series = append(m.series, &series{figure: figure, samples: []float64{value}})
}

// duration adds a sample in seconds from a report. A budget of zero means that
// there is none.
func (m *measurement) duration(r report.Report, name string, budget, value time.Duration) {
	figure := figures.Figure{Scenario: r.Scenario, Name: name, Unit: "s", Date: r.Started.Format(time.DateOnly), Note: conditions(r)}
	if budget > 0 {
		figure.Budget = new(budget.Seconds())
	}
	m.sample(figure, value.Seconds())
}

// conditions says what a run's times depend on beside the machine.
func conditions(r report.Report) string {
	if len(r.Guests) == 0 {
		return ""
	}
	return map[string]string{"kvm": "under KVM", "uml": "under User Mode Linux", "tcg": "under QEMU's translator"}[r.Guests[0].Accelerator]
}

// summary returns what the samples come to.
func (m *measurement) summary() []figures.Figure {
	var all []figures.Figure
	for _, s := range m.series {
		figure := s.figure
		figure.Measured = figures.Summarize(s.samples)
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
	m.whole(r, took)
	for _, v := range s.Runnable(nil) {
		if v.Role != framework.Affected {
			continue
		}
		took, r, err := m.run(ctx, name, "--variant", v.Name)
		if err != nil {
			return err
		}
		m.duration(r, "one affected variant, lab included", limits.single, took)
		m.duration(r, figures.LabIsUp, limits.lab, milliseconds(r.Timings.Lab))
		m.variants(r, limits)
	}

	if _, _, err := m.relapse(ctx, "up", name); err != nil {
		return err
	}
	for _, v := range s.Runnable(nil) {
		took, r, err := m.run(ctx, name, "--reuse", "--keep", "--variant", v.Name)
		if err != nil {
			return err
		}
		m.duration(r, "one variant on a running lab", limits.reuse, took)
		m.variants(r, limits)
	}
	_, _, err = m.relapse(ctx, "down", name)
	return err
}

// whole takes the samples of a run of all variants, which took so long.
func (m *measurement) whole(r report.Report, took time.Duration) {
	limits := budgets[r.Scenario]
	m.duration(r, figures.AllVariants, limits.whole, took)
	m.duration(r, figures.LabIsUp, limits.lab, milliseconds(r.Timings.Lab))
	for _, v := range r.Variants {
		m.duration(r, figures.OnThatLab(v.Name), 0, milliseconds(v.ElapsedMS))
	}
	m.variants(r, limits)
}

// variants takes the samples that are in a report: how long detection took and
// each recovery, and how many packets a fixed version lost, which may lose none.
func (m *measurement) variants(r report.Report, limits budget) {
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, known := metrics.TimeToDetectOf(v); known {
				m.duration(r, "time to detect", limits.detect, detected)
			}
		case framework.Fixed:
			m.sample(figures.Figure{
				Scenario: r.Scenario, Name: "packets lost with " + v.Name, Unit: "packets", Budget: new(0.0),
				Date: r.Started.Format(time.DateOnly), Note: conditions(r),
			}, float64(v.Packets.Lost))
		}
		for _, remedy := range v.Remedies {
			if remedy.TimeToRecoverMS != nil {
				m.duration(r, "time to recover: "+remedy.Name, 0, milliseconds(*remedy.TimeToRecoverMS))
			}
		}
	}
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
	return took, r, err
}

// machineOf says in a few words which machine a report is of.
func machineOf(r report.Report) (string, error) {
	stored, err := json.Marshal(r.Machine)
	if err != nil {
		return "", fmt.Errorf("the machine in the report of %s: %w", r.Scenario, err)
	}
	var facts host.Facts
	if err := json.Unmarshal(stored, &facts); err != nil {
		return "", fmt.Errorf("the machine in the report of %s: %w", r.Scenario, err)
	}
	return machine(facts), nil
}

// machine is facts in a few words. Neither the kernel's patch level nor Docker's makes
// another machine.
func machine(facts host.Facts) string {
	return fmt.Sprintf("%d CPUs, %d GiB of memory, Linux %s, Docker %s",
		facts.CPUs, facts.MemoryGiB, majorMinor(facts.Kernel), majorMinor(facts.Docker))
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
	cmd.Env = append(os.Environ(), m.environment...)
	// The CLI undoes what it did before it ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if ended, is := errors.AsType[*exec.ExitError](err); is && slices.Contains(m.judged, ended.ExitCode()) {
		err = nil
	}
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
	for _, f := range m.summary() {
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
