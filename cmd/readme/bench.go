package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/host"
)

// program is the CLI under measurement, which make build builds.
const program = "bin/relapse"

// memory is the budget for the peak memory of the CLI.
const memory = 300 // MiB

// bench measures what its arguments say, and replaces the earlier figures in figures.Path.
func bench(args []string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, err := figures.Read(figures.Path) // an unreadable file must be reported before an hour of work
	if err != nil {
		return err
	}
	m := &measurement{machine: machine(host.Inspect(ctx, host.Needs{}).Facts)}
	if m.output, err = os.MkdirTemp("", "relapse-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.output)
	all := len(args) == 0
	if all {
		args = everything()
	}
	var errs []error
	for _, what := range args {
		if err := m.take(ctx, what); err != nil {
			errs = append(errs, fmt.Errorf("measuring %s: %w", what, err))
		}
		if ctx.Err() != nil {
			return errors.Join(errs...)
		}
	}
	if all && len(errs) == 0 { // the peak is that of all scenarios
		m.sample(figures.Figure{Name: "peak memory of the CLI", Unit: "MiB", Budget: new(float64(memory))}, float64(m.peak)/(1<<20))
	}
	measured := figures.File{Machine: m.machine}
	for _, s := range m.series {
		s.figure.Measured = figures.Summarize(s.samples)
		measured.Figures = append(measured.Figures, s.figure)
	}
	fmt.Print("\n", figureTable(measured))
	for _, f := range measured.Figures {
		if f.OverBudget() {
			errs = append(errs, fmt.Errorf("over budget: %s, %s", cmp.Or(f.Scenario, "relapse"), f.Name))
		}
	}
	return errors.Join(before.Update(m.machine, measured.Figures...).Write(figures.Path), errors.Join(errs...))
}

func everything() []string {
	var names []string
	for _, s := range scenarios.All {
		if s.Budget != (framework.Budget{}) {
			names = append(names, s.Incident.Name)
		}
	}
	return append(names, slices.Sorted(maps.Keys(commands))...)
}

func (m *measurement) take(ctx context.Context, what string) error {
	if measure, is := commands[what]; is {
		return measure(m, ctx)
	}
	if i := slices.IndexFunc(scenarios.All, func(s framework.Scenario) bool { return s.Incident.Name == what }); i >= 0 {
		return m.scenario(ctx, scenarios.All[i])
	}
	return errors.New("it is no scenario, and none of " + strings.Join(slices.Sorted(maps.Keys(commands)), ", "))
}

type measurement struct {
	output  string // folder for the reports
	peak    int64  // bytes, of all runs of scenarios: bisect and qualify also compile
	machine string // in a few words
	series  []*series
}

type series struct {
	figure  figures.Figure // without Measured
	samples []float64
}

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

// duration adds a sample in seconds from a report. A budget of zero means that there is none.
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

func (m *measurement) scenario(ctx context.Context, s framework.Scenario) error {
	// A lab that is brought up once leaves the images in the cache and in Docker.
	name := s.Incident.Name
	for _, args := range [][]string{{"down", name}, {"up", name}, {"down", name}, {"run", name, "--output", m.output}} {
		_, peak, err := relapse(ctx, 0, nil, args...)
		if err != nil { // the lab must not stay
			_, _, down := relapse(context.WithoutCancel(ctx), 0, nil, "down", name)
			return errors.Join(err, down)
		}
		if args[0] == "run" {
			m.peak = max(m.peak, peak)
		}
	}
	r, err := report.Read(filepath.Join(report.Latest(m.output, name), "report.json"))
	if err == nil && r.CPU.Slowed() {
		err = errors.New("other programs slowed it down")
	}
	if err == nil {
		m.whole(r, s.Budget)
	}
	return err
}

func (m *measurement) whole(r report.Report, limits framework.Budget) {
	m.duration(r, figures.AllVariants, limits.Whole, milliseconds(r.Timings.Total-r.Timings.Images))
	m.duration(r, figures.LabIsUp, limits.Lab, milliseconds(r.Timings.Lab))
	m.variants(r, limits)
}

// variants takes the samples that are in a report: how long detection took and
// each recovery, and how many packets a fixed version lost, which may lose none.
func (m *measurement) variants(r report.Report, limits framework.Budget) {
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, known := v.TimeToDetect(); known {
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

// machine describes a machine in a few words. Patch levels of the kernel and of Docker are
// left out, because they do not make another machine.
func machine(facts host.Facts) string {
	return fmt.Sprintf("%d CPUs, %d GiB of memory, Linux %s, Docker %s",
		facts.CPUs, facts.MemoryGiB, majorMinor.FindString(facts.Kernel), majorMinor.FindString(facts.Docker))
}

var majorMinor = regexp.MustCompile(`^[0-9]+\.[0-9]+`)

// relapse runs the CLI to its end, in this program's environment and with more variables. It returns
// how long that took, and the peak memory in bytes of the CLI and its children. The error of a failure
// has its output; exit status judged, unless it is 0, is none.
func relapse(ctx context.Context, judged int, more []string, args ...string) (time.Duration, int64, error) {
	line := program + " " + strings.Join(args, " ")
	fmt.Println(line)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), more...)
	// On an interrupt the CLI takes the lab down before it ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if ended, is := errors.AsType[*exec.ExitError](err); is && ended.ExitCode() == judged {
		err = nil
	}
	if err != nil {
		return took, 0, fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return took, usage.Maxrss << 10, nil // getrusage(2): in KiB
}
