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

// bench takes the figures from the runs that are stored in some folders, and replaces the earlier ones in figures.Path.
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

// figuresOf returns the figures of the runs that can be compared: the run passed, had no flags that change what is
// measured, was not slowed down, and is of the program and the machine of the newest run.
func figuresOf(runs []report.Report) figures.File {
	runs = each.Where(runs, func(r report.Report) bool {
		return r.Verdict == string(framework.Pass) && r.Unfinished == nil && r.Command == "relapse run "+r.Scenario && !r.CPU.Slowed()
	})
	if len(runs) == 0 {
		return figures.File{}
	}
	newest := slices.MaxFunc(runs, func(a, b report.Report) int { return a.Started.Compare(b.Started) })
	measured, samples := figures.File{Machine: machineOf(newest)}, [][]float64{} // samples: a list for each figure
	for _, r := range runs {
		s, there := each.First(scenarios.All, func(s framework.Scenario) bool { return s.Incident.Name == r.Scenario })
		if !there || s.Budget == (framework.Budget{}) || r.Relapse != newest.Relapse || machineOf(r) != machineOf(newest) {
			continue
		}
		for _, f := range figuresIn(r, s.Budget) {
			i := slices.IndexFunc(measured.Figures, func(o figures.Figure) bool {
				return o.Scenario == f.Scenario && o.Name == f.Name && o.Note == f.Note
			})
			if i < 0 {
				i = len(samples)
				measured.Figures, samples = append(measured.Figures, f), append(samples, nil)
			}
			samples[i] = append(samples[i], f.Measured.Median)
			measured.Figures[i].Date = max(measured.Figures[i].Date, f.Date)
		}
	}
	for i, all := range samples {
		measured.Figures[i].Measured = figures.Summarize(all)
	}
	return measured
}

// figuresIn returns the figures of one run: how long the run, the lab, detection and each recovery took, and how many
// packets a fixed version lost (it may lose none).
func figuresIn(r report.Report, limits framework.Budget) (all []figures.Figure) {
	add := func(name, unit string, budget *float64, value float64) {
		all = append(all, figures.Figure{
			Scenario: r.Scenario, Name: name, Date: r.Started.Format(time.DateOnly), Measured: figures.Spread{Median: value},
			Budget: budget, Unit: unit, Note: conditions(r),
		})
	}
	duration := func(name string, budget, value time.Duration) { // budget 0: unlimited
		var most *float64
		if budget > 0 {
			most = new(budget.Seconds())
		}
		add(name, "s", most, value.Seconds())
	}
	duration(figures.AllVariants, limits.Whole, milliseconds(r.Timings.Total-r.Timings.Images))
	duration(figures.LabIsUp, limits.Lab, milliseconds(r.Timings.Lab))
	for _, v := range r.Variants {
		switch framework.Role(v.Role) {
		case framework.Affected:
			if detected, ok := v.TimeToDetect(); ok {
				duration("time to detect", limits.Detect, detected)
			}
		case framework.Fixed:
			add("packets lost with "+v.Name, "packets", new(0.0), float64(v.Packets.Lost))
		}
		for _, remedy := range v.Remedies {
			if remedy.TimeToRecoverMS != nil {
				duration("time to recover: "+remedy.Name, 0, milliseconds(*remedy.TimeToRecoverMS))
			}
		}
	}
	return all
}

// conditions names what a run's times depend on, other than the machine.
func conditions(r report.Report) string {
	if len(r.Guests) == 0 {
		return ""
	}
	return map[string]string{"kvm": "under KVM", "uml": "under User Mode Linux", "tcg": "under QEMU's translator"}[r.Guests[0].Accelerator]
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
