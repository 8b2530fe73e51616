// Command bench runs the CLI as users do, measures its times and its memory, and compares
// them with their budgets. It writes the figures to figures.Path, in place of the earlier
// ones. Before and after it measures a scenario it removes the scenario's lab. It must be
// run in the root of the repository.
//
// With folders of reports as arguments, such as the one that make test-all writes, it runs
// nothing. It takes the figures from the runs in them that are whole, passed, and were not
// slowed down by other work.
//
// With -only it measures the named scenarios, and of build, bisect, qualify and detectors those
// that are named.
//
// Exit status: 0 all figures are within their budgets; 1 one is not, or a run did not pass.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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

// program is the CLI under measurement, which make build builds.
const program = "bin/relapse"

// memory is the budget for the peak memory of the CLI.
const memory = 300 << 20 // bytes

func main() {
	only := flag.String("only", "", "measure only these, by `NAME,NAME`: scenarios, build, bisect, qualify and detectors")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func bench(ctx context.Context, only string) error {
	before, err := figures.Read(figures.Path) // an unreadable file must be reported before an hour of work
	if err != nil {
		return err
	}
	m := &measurement{}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
	}
	var known []string
	for _, s := range scenarios.All {
		known = append(known, s.Incident.Name)
	}
	for _, c := range commands {
		known = append(known, c.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("-only: %q is neither a scenario with a budget nor build, bisect, qualify or detectors%s", name, topology.Nearest(name, known))
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
				m.whole(r, s.Budget, milliseconds(r.Timings.Total-r.Timings.Images))
			}
		}
	}
	if len(m.series) == 0 {
		return fmt.Errorf("no whole run that passed in %s", strings.Join(folders, ", "))
	}
	return nil
}

// isWhole reports whether a run had every variant that can run on such a machine, each
// once, without ablation.
func isWhole(s framework.Scenario, r report.Report) bool {
	var ran, all []string
	for _, v := range r.Variants {
		ran = append(ran, v.Name)
		if v.Repeats != nil {
			return false
		}
	}
	for _, v := range s.Runnable(false) {
		all = append(all, v.Name)
	}
	return r.Ablated == "" && slices.Equal(ran, all)
}

// all measures what the names select; without names, everything.
func (m *measurement) all(ctx context.Context, names []string) (err error) {
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	if m.output, err = os.MkdirTemp("", "relapse-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.output)
	m.machine = machine(host.Inspect(ctx, host.Needs{}).Facts)
	for _, s := range scenarios.All {
		if s.Budget == (framework.Budget{}) || !wanted(s.Incident.Name) {
			continue
		}
		if err := m.scenario(ctx, s); err != nil {
			// The lab must not stay.
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
	peak    int64  // bytes, of all runs of scenarios: bisect and qualify also compile
	machine string // in a few words
	series  []*series

	// environment is added to this program's for the CLI. judged are exit statuses other
	// than 0 that do not count as failures.
	environment []string
	judged      []int
}

// series is the samples of one figure.
type series struct {
	figure  figures.Figure // without Measured
	samples []float64
}

// sample adds a sample to the figure of this scenario, name and note, or to a new one.
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

// conditions names what a run's times depend on, other than the machine.
func conditions(r report.Report) string {
	if len(r.Guests) == 0 {
		return ""
	}
	return map[string]string{"kvm": "under KVM", "uml": "under User Mode Linux", "tcg": "under QEMU's translator"}[r.Guests[0].Accelerator]
}

// summary returns all figures with their samples summarized.
func (m *measurement) summary() []figures.Figure {
	var all []figures.Figure
	for _, s := range m.series {
		figure := s.figure
		figure.Measured = figures.Summarize(s.samples)
		all = append(all, figure)
	}
	return all
}

// scenario measures one scenario: all variants on labs of their own.
func (m *measurement) scenario(ctx context.Context, s framework.Scenario) error {
	name := s.Incident.Name
	// A lab that is brought up once leaves the images in the cache and in Docker.
	for _, args := range [][]string{{"down", name}, {"up", name}, {"down", name}} {
		if _, _, err := m.relapse(ctx, args...); err != nil {
			return err
		}
	}
	took, r, err := m.run(ctx, name)
	if err != nil {
		return err
	}
	m.whole(r, s.Budget, took)
	return nil
}

// whole takes the samples of a run of all variants, which took so long.
func (m *measurement) whole(r report.Report, limits framework.Budget, took time.Duration) {
	m.duration(r, figures.AllVariants, limits.Whole, took)
	m.duration(r, figures.LabIsUp, limits.Lab, milliseconds(r.Timings.Lab))
	for _, v := range r.Variants {
		m.duration(r, figures.OnThatLab(v.Name), 0, milliseconds(v.ElapsedMS))
	}
	m.variants(r, limits)
}

// variants takes the samples that are in a report: how long detection took and
// each recovery, and how many packets a fixed version lost, which may lose none.
func (m *measurement) variants(r report.Report, limits framework.Budget) {
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, known := metrics.TimeToDetectOf(v); known {
				m.duration(r, "time to detect", limits.Detect, detected)
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

// run runs a scenario, and returns how long the CLI took and its report.
func (m *measurement) run(ctx context.Context, name string, args ...string) (time.Duration, report.Report, error) {
	took, peak, err := m.relapse(ctx, append([]string{"run", name, "--output", m.output}, args...)...)
	if err != nil {
		return took, report.Report{}, err
	}
	m.peak = max(m.peak, peak)
	r, err := report.Read(filepath.Join(report.Latest(m.output, name), "report.json"))
	return took, r, err
}

// machineOf describes the machine of a report in a few words.
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

// machine describes a machine in a few words. Patch levels of the kernel and of Docker are
// left out, because they do not make another machine.
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

// relapse runs the CLI to its end. It returns how long that took, and the peak memory in
// bytes of the CLI and its children. The error of a failure has its output.
func (m *measurement) relapse(ctx context.Context, args ...string) (time.Duration, int64, error) {
	line := program + " " + strings.Join(args, " ")
	fmt.Println(line)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), m.environment...)
	// On an interrupt the CLI takes the lab down before it ends.
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

// print prints the figures. The error names those that are over their budgets.
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
