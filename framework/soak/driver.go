package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/metrics"
	"github.com/relapse-dev/relapse/framework/report/page"
)

// Lab runs the scenario; see keptlab.Lab.
type Lab interface {
	Run(ctx context.Context, s framework.Scenario, title string, keep bool) keptlab.Run
	Up() bool
	Down(s framework.Scenario) error
}

// Counter counts what exists after a run, by the names of Quantities.
type Counter interface {
	// Program counts what this process has, and Machine what the machine has.
	Program() (map[string]int64, error)
	Machine(ctx context.Context) (map[string]int64, error)
	// Lab counts the scenario's lab. Left lists what exists of it, for a lab that should
	// be gone.
	Lab(ctx context.Context) (counts map[string]int64, left []string, err error)
}

// Soak runs a scenario repeatedly. It holds no data of runs that have ended, so that its
// own memory does not grow.
type Soak struct {
	Scenario framework.Scenario
	For      time.Duration // no run begins later; zero: no limit
	Runs     int           // at most; zero: no limit
	// FreshEvery is how many runs share a lab before the next one gets a new lab; zero:
	// all share one.
	FreshEvery  int
	KeepReports bool // also of runs that passed
	Dir         string
	Lab         Lab
	Counter     Counter
	Note        func(text string) // a line of progress
	Command     string            // repeats the soak

	header Header
	labs   int    // so far
	onLab  int    // runs on the last lab
	passed string // the folder of the last run that passed
}

// Run runs until the time or the number of runs is used up, or runs break, and stores the
// result in Dir. After an error or an interrupt it returns the result so far.
func (s *Soak) Run(ctx context.Context) (Result, error) {
	s.header = Header{Scenario: s.Scenario.Incident.Name, Command: s.Command, Began: time.Now()}
	var err error
	if s.header.Before, err = s.Counter.Machine(ctx); err != nil {
		return Result{}, err
	}
	failed := s.repeat(ctx)
	switch {
	case ctx.Err() != nil:
		s.header.Stopped = "it was interrupted"
	case failed != nil:
		s.header.Stopped = "it could not continue: " + failed.Error()
	}
	errs := []error{failed, s.Lab.Down(s.Scenario)}
	// Also after an interrupt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countsWithin)
	defer cancel()
	_, s.header.Left, err = s.Counter.Lab(ctx)
	errs = append(errs, err)
	s.header.After, err = s.Counter.Machine(ctx)
	errs = append(errs, err)
	s.header.Took = time.Since(s.header.Began)
	runs, err := Read(s.Dir)
	result := Sum(s.header, runs)
	return result, errors.Join(append(errs, err, result.Write(s.Dir))...)
}

// repeat runs the scenario repeatedly. A run that breaks is recorded like the others; if
// the next one breaks as well, on a new lab, the machine is at fault and repeat ends.
func (s *Soak) repeat(ctx context.Context) error {
	broke := false
	for number := 1; s.Runs == 0 || number <= s.Runs; number++ {
		if number > 1 && s.For > 0 && time.Since(s.header.Began) >= s.For || ctx.Err() != nil {
			return nil
		}
		if !s.Lab.Up() {
			s.labs, s.onLab = s.labs+1, 0
		}
		s.onLab++
		last := s.onLab == s.FreshEvery || number == s.Runs
		run := Run{Number: number, Lab: s.labs, OnLab: s.onLab, Began: time.Now()}
		ended := s.Lab.Run(ctx, s.Scenario, fmt.Sprintf("%s, run %d", s.Scenario.Incident.Name, number), !last)
		if ctx.Err() != nil {
			return ended.Left
		}
		if !ended.Reported || ended.Left != nil {
			return errors.Join(ended.Broken, ended.Left)
		}
		if err := s.record(ctx, run, ended); err != nil {
			return err
		}
		if ended.Broken != nil && broke {
			return ended.Broken
		}
		broke = ended.Broken != nil
	}
	return nil
}

// record stores a run and what exists after it.
func (s *Soak) record(ctx context.Context, run Run, ended keptlab.Run) error {
	run.describe(ended)
	if run.Verdict != string(framework.Pass) || s.KeepReports {
		run.Report = filepath.Join(ended.Report.Scenario, ended.Report.Run, page.Name)
	}
	run.Kept = s.Lab.Up()
	s.count(ctx, &run, ended.Dir)
	if ctx.Err() != nil {
		run.NotCounted, run.Counts = "interrupted", nil
	}
	if err := run.Append(s.Dir); err != nil {
		return err
	}
	s.Note(fmt.Sprintf("run %d, on lab %d: %s", run.Number, run.Lab, run))
	return s.prune(run, ended.Dir)
}

// describe takes from a report what a soak keeps of it.
func (r *Run) describe(ended keptlab.Run) {
	r.Verdict, r.TotalMS = ended.Report.Verdict, ended.Report.Timings.Total
	if r.OnLab == 1 {
		r.LabMS = &ended.Report.Timings.Lab
	}
	if ended.Broken != nil {
		r.Why = append(r.Why, ended.Broken.Error())
	}
	for _, v := range ended.Report.Variants {
		r.Variants = append(r.Variants, variantOf(v))
		for _, reason := range v.Reasons {
			r.Why = append(r.Why, v.Name+": "+reason)
		}
	}
}

func variantOf(v report.Variant) Variant {
	one := Variant{Name: v.Name, Expected: v.Expected, Verdict: v.Verdict, TotalMS: v.ElapsedMS}
	if detected, known := metrics.TimeToDetectOf(v); known {
		one.DetectMS = new(detected.Milliseconds())
	}
	for _, remedy := range v.Remedies {
		if remedy.TimeToRecoverMS == nil {
			continue
		}
		if one.RecoverMS == nil {
			one.RecoverMS = map[string]int64{}
		}
		one.RecoverMS[remedy.Name] = *remedy.TimeToRecoverMS
	}
	return one
}

// String is the run's result in one line.
func (r Run) String() string {
	var variants []string
	for _, v := range r.Variants {
		variants = append(variants, v.Name+" "+v.Verdict)
	}
	text := fmt.Sprintf("%s (%s) in %s", r.Verdict, strings.Join(variants, ", "), duration(r.TotalMS))
	if len(r.Why) > 0 {
		text += ": " + strings.Join(r.Why, "; ")
	}
	return text
}

// prune removes the report of the previous run that passed, when another run has passed.
func (s *Soak) prune(run Run, dir string) error {
	if run.Verdict != string(framework.Pass) || s.KeepReports {
		return nil
	}
	before := s.passed
	s.passed = dir
	if before == "" {
		return nil
	}
	if err := os.RemoveAll(before); err != nil {
		return fmt.Errorf("removing the report of a run that passed: %w", err)
	}
	return nil
}

// countsWithin bounds how long counting may take.
const countsWithin = 30 * time.Second

// count counts what exists after a run.
func (s *Soak) count(ctx context.Context, run *Run, dir string) {
	ctx, cancel := context.WithTimeout(ctx, countsWithin)
	defer cancel()
	counts, programErr := s.Counter.Program()
	files, size, filesErr := filesBelow(dir)
	lab, left, labErr := s.Counter.Lab(ctx)
	machine, machineErr := s.Counter.Machine(ctx)
	if err := errors.Join(programErr, filesErr, labErr, machineErr); err != nil {
		run.NotCounted = err.Error()
		return
	}
	run.Counts = map[string]int64{"report: files of a run": files, "report: size of a run": size}
	for _, some := range []map[string]int64{counts, lab, machine} {
		maps.Copy(run.Counts, some)
	}
	if !run.Kept {
		run.Left = left
	}
}
