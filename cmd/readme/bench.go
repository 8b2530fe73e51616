package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/merge"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/each"
)

// bench takes the figures from the runs that are stored in some folders, and replaces the earlier ones
// in figures.Path.
func bench(dirs []string) error {
	before, err := figures.Read(figures.Path)
	if err != nil {
		return err
	}
	var runs []report.Report
	for _, dir := range dirs {
		all, err := merge.ReadAll(dir)
		if err != nil {
			return err
		}
		runs = append(runs, each.Of(all, func(s merge.Shard) report.Report { return s.Report })...)
	}
	measured := figuresOf(runs)
	if len(measured.Figures) == 0 {
		return fmt.Errorf("no run in %q is measured: expected runs of whole scenarios that passed, with nothing beside them", dirs)
	}
	fmt.Print("\n", figureTable(measured))
	var errs []error
	for _, f := range measured.Figures {
		if f.OverBudget() {
			errs = append(errs, fmt.Errorf("over budget: %s, %s", f.Scenario, f.Name))
		}
	}
	return errors.Join(before.Update(measured.Machine, measured.Figures...).Write(figures.Path), errors.Join(errs...))
}

// figuresOf are the figures of runs: of those that passed, had no flags that make another run of them, and
// were not slowed down. The others are of another program or machine than the newest, and do not compare.
func figuresOf(runs []report.Report) figures.File {
	runs = each.Where(runs, func(r report.Report) bool {
		return r.Verdict == string(framework.Pass) && r.Unfinished == nil && r.Command == "relapse run "+r.Scenario && !r.CPU.Slowed()
	})
	if len(runs) == 0 {
		return figures.File{}
	}
	newest := slices.MaxFunc(runs, func(a, b report.Report) int { return a.Started.Compare(b.Started) })
	var m measurement
	for _, r := range runs {
		s, there := each.First(scenarios.All, func(s framework.Scenario) bool { return s.Incident.Name == r.Scenario })
		if there && s.Budget != (framework.Budget{}) && r.Relapse == newest.Relapse && machineOf(r) == machineOf(newest) {
			m.whole(r, s.Budget)
		}
	}
	measured := figures.File{Machine: machineOf(newest)}
	for _, s := range m.series {
		s.figure.Measured = figures.Summarize(s.samples)
		measured.Figures = append(measured.Figures, s.figure)
	}
	return measured
}

type measurement struct{ series []*series }

type series struct {
	figure  figures.Figure // without Measured
	samples []float64
}

// sample adds a sample of a figure of a report.
func (m *measurement) sample(r report.Report, figure figures.Figure, value float64) {
	figure.Scenario, figure.Date, figure.Note = r.Scenario, r.Started.Format(time.DateOnly), conditions(r)
	for _, s := range m.series {
		if s.figure.Scenario == figure.Scenario && s.figure.Name == figure.Name && s.figure.Note == figure.Note {
			s.samples = append(s.samples, value)
			s.figure.Date = max(s.figure.Date, figure.Date)
			return
		}
	}
	m.series = append(m.series, &series{figure: figure, samples: []float64{value}})
}

// duration adds a sample in seconds. A budget of zero means that there is none.
func (m *measurement) duration(r report.Report, name string, budget, value time.Duration) {
	figure := figures.Figure{Name: name, Unit: "s"}
	if budget > 0 {
		figure.Budget = new(budget.Seconds())
	}
	m.sample(r, figure, value.Seconds())
}

// conditions names what a run's times depend on, other than the machine.
func conditions(r report.Report) string {
	if len(r.Guests) == 0 {
		return ""
	}
	return map[string]string{"kvm": "under KVM", "uml": "under User Mode Linux", "tcg": "under QEMU's translator"}[r.Guests[0].Accelerator]
}

// whole takes the samples that are in a report: how long the run, the lab, detection and each
// recovery took, and how many packets a fixed version lost, which may lose none.
func (m *measurement) whole(r report.Report, limits framework.Budget) {
	m.duration(r, figures.AllVariants, limits.Whole, milliseconds(r.Timings.Total-r.Timings.Images))
	m.duration(r, figures.LabIsUp, limits.Lab, milliseconds(r.Timings.Lab))
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, known := v.TimeToDetect(); known {
				m.duration(r, "time to detect", limits.Detect, detected)
			}
		case framework.Fixed:
			m.sample(r, figures.Figure{Name: "packets lost with " + v.Name, Unit: "packets", Budget: new(0.0)}, float64(v.Packets.Lost))
		}
		for _, remedy := range v.Remedies {
			if remedy.TimeToRecoverMS != nil {
				m.duration(r, "time to recover: "+remedy.Name, 0, milliseconds(*remedy.TimeToRecoverMS))
			}
		}
	}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// machineOf describes a run's machine in a few words. Patch levels of the kernel and of Docker are
// left out, because they do not make another machine.
func machineOf(r report.Report) string {
	facts, _ := r.Machine.(map[string]any)
	short := func(name string) string { return majorMinor.FindString(fmt.Sprint(facts[name])) }
	return fmt.Sprintf("%v CPUs, %v GiB of memory, Linux %s, Docker %s", facts["cpus"], facts["memory_gib"], short("kernel"), short("docker"))
}

var majorMinor = regexp.MustCompile(`^[0-9]+\.[0-9]+`)
