package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/docker/docker/client"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/metrics"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/soak"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// soakOptions are the flags of soak.
type soakOptions struct {
	lasts       time.Duration // no run begins later; zero: no bound
	runs        int           // at most so many; zero: no bound
	freshEvery  int           // so many runs have a lab; zero: all have one
	variants    []string
	brief       bool
	keepReports bool
	output      string
	timeout     time.Duration
	dryRun      bool
}

func soakCommand(s *settings) *cobra.Command {
	var o soakOptions
	cmd := &cobra.Command{
		Use:   "soak NAME",
		Short: "Run a scenario again and again, and tell what grows",
		Long: `Soak runs a scenario again and again, on one lab and then on new ones, and counts
after each run: verdicts; times; open files, goroutines and memory of relapse itself;
containers, processes, links, routes and rules of the lab and of the machine; files of
the report. What grows is told by this rule: over the last half of the runs, cut in
five, both the lowest and the highest value rise from each fifth to the next. That takes
20 runs, for the lab's own things 20 on one lab.

OUTPUT/soak/NAME/<time> has runs.jsonl, a line for each run from when it ended, and at
the end the result as soak.txt and soak.json (relapse.soak/v1). Reports of runs that
passed are removed, but for the newest; --keep-reports keeps them.

No run begins when the time is up. An interrupt takes the lab down and gives the result
so far.

Exit status: 0 all as expected, and nothing grows; 1 a run did not come to what was
expected, something grows, or something was left of a lab; 4 a run could not be judged,
or there were too few to tell what grows; 2, 3 and 130 as for all commands.`,
		Example: "  relapse soak node-drain --for 2h\n  relapse soak node-drain --variant cilium-1.11.6 --runs 100 --fresh-every 0 --brief",
		Args:    oneArg("the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.runs != 0 && !cmd.Flags().Changed("for") {
				o.lasts = 0
			}
			return runSoak(cmd.Context(), s, args[0], o)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.lasts, "for", 2*time.Hour, "for how long to begin runs; with --runs alone there is no bound")
	flags.IntVar(&o.runs, "runs", 0, "at most so many runs; 0 is no bound")
	flags.IntVar(&o.freshEvery, "fresh-every", soak.Enough+1, "how many runs have a lab before the next gets a new one; 0 is all")
	flags.StringSliceVar(&o.variants, "variant", nil, "run these variants only")
	flags.BoolVar(&o.brief, "brief", false, "leave lesser forms and remedies out: more runs in the time")
	flags.BoolVar(&o.keepReports, "keep-reports", false, "keep the reports of runs that passed as well")
	flags.StringVar(&o.output, "output", "reports", "folder for the reports")
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "bound on each run")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the steps of a run, and run nothing")
	return cmd
}

// command does a soak again.
func (o soakOptions) command(scenario string) string {
	words := []string{"relapse", "soak", scenario}
	if o.lasts > 0 {
		words = append(words, "--for", o.lasts.String())
	}
	if o.runs > 0 {
		words = append(words, "--runs", fmt.Sprint(o.runs))
	}
	words = append(words, "--fresh-every", fmt.Sprint(o.freshEvery))
	for _, v := range o.variants {
		words = append(words, "--variant", v)
	}
	if o.brief {
		words = append(words, "--brief")
	}
	return shellescape.QuoteCommand(words)
}

// soaking is a soak under way. It holds nothing of the runs that are over, lest it find
// itself growing.
type soaking struct {
	scenario framework.Scenario
	options  soakOptions
	docker   *client.Client
	lab      oneLab
	dir      string // of the soak
	temp     string // of all temporary files
	note     func(text string)

	header soak.Header
	began  time.Time
	labs   int    // so far
	onLab  int    // runs on the last one
	passed string // the folder of the last run that passed
}

func runSoak(ctx context.Context, s *settings, name string, o soakOptions) error {
	scenario, err := scenarioNamed(name)
	if err != nil {
		return err
	}
	chosen := []framework.Scenario{scenario}
	if err := checkVariants(chosen, o.variants); err != nil {
		return err
	}
	if err := checkRunnable(chosen, engine.Options{Variants: o.variants}); err != nil {
		return err
	}
	switch {
	case o.lasts < 0 || o.lasts == 0 && o.runs == 0:
		return usagef("--for: %s is no time to run in", o.lasts)
	case o.runs < 0:
		return usagef("--runs: %d is no number of runs", o.runs)
	case o.freshEvery < 0:
		return usagef("--fresh-every: %d is no number of runs", o.freshEvery)
	case o.timeout <= 0:
		return usagef("--timeout: %s is no time to run in", o.timeout)
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	run := suite.Options{Options: engine.Options{Variants: o.variants, Brief: o.brief, Log: log}}
	if o.dryRun {
		run.Progress, run.DryRun = newDisplay(os.Stdout, look{}), true
		_, err := suite.Run(ignoreFail{}, chosen, run)
		return err
	}
	if err := prepare(ctx, chosen, &run); err != nil {
		return err
	}
	defer run.Docker.Close()
	k := &soaking{scenario: scenario, options: o, docker: run.Docker, began: time.Now()}
	if k.dir, err = report.NewRun(filepath.Join(o.output, "soak"), name, k.began); err != nil {
		return usagef("--output: %w", err)
	}
	// What is in a folder of this process's own is of its own making.
	if k.temp, err = os.MkdirTemp("", "relapse-soak-"); err != nil {
		return fmt.Errorf("making a folder for temporary files: %w", err)
	}
	defer os.RemoveAll(k.temp)
	if err := os.Setenv("TMPDIR", k.temp); err != nil {
		return err
	}
	// A write to whoever has gone away must not end this process before its lab is down.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	display := s.progress(os.Stdout, log)
	display.forgets = true
	defer display.Close()
	k.note = func(text string) { display.Note("soak", text) }
	run.Progress, run.Output = display, k.dir
	once := o
	once.lasts, once.runs, once.freshEvery = 0, 1, 0
	run.Command = func(s framework.Scenario) string { return once.command(s.Incident.Name) }
	k.lab = oneLab{options: run, timeout: o.timeout}
	k.header = soak.Header{Scenario: name, Command: o.command(name), Began: k.began}

	result, err := k.run(ctx)
	display.Close()
	if result.Runs > 0 {
		fmt.Fprintf(os.Stdout, "\n%s\n  %s, %s and %s: %s\n", strings.TrimSuffix(result.Text(), "\n"), soak.FileText, soak.FileJSON, soak.FileRuns, k.dir)
	}
	switch {
	case ctx.Err() != nil:
		return errors.Join(engine.ErrInterrupted, err) // the lab may not be down
	case err != nil:
		return &verdictError{result.Verdict, err}
	case result.Verdict != framework.Pass:
		return &verdictError{result.Verdict, nil}
	}
	return nil
}

// run runs until the time is up, or it makes no sense to go on, and tells what all
// runs came to.
func (k *soaking) run(ctx context.Context) (soak.Result, error) {
	machine, err := countMachine(ctx, k.docker)
	if err != nil {
		return soak.Result{}, err
	}
	k.header.Before = machine
	failed := k.repeat(ctx)
	switch {
	case ctx.Err() != nil:
		k.header.Stopped = "it was interrupted"
	case failed != nil:
		k.header.Stopped = "it could not go on: " + failed.Error()
	}
	errs := []error{failed, k.lab.down(k.scenario)}
	// Also after an interrupt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countsWithin)
	defer cancel()
	if _, k.header.Left, err = countLab(ctx, k.docker, k.scenario.Topology.Name); err != nil {
		errs = append(errs, err)
	}
	if k.header.After, err = countMachine(ctx, k.docker); err != nil {
		errs = append(errs, err)
	}
	k.header.Took = time.Since(k.began)
	runs, err := soak.Read(k.dir)
	result := soak.Sum(k.header, runs)
	return result, errors.Join(append(errs, err, result.Write(k.dir))...)
}

// repeat runs again and again. One run that breaks is told of like the others; where
// the next one breaks as well, on a new lab, it is this machine.
func (k *soaking) repeat(ctx context.Context) error {
	broke := false
	for number := 1; k.options.runs == 0 || number <= k.options.runs; number++ {
		if number > 1 && k.options.lasts > 0 && time.Since(k.began) >= k.options.lasts || ctx.Err() != nil {
			return nil
		}
		if !k.lab.up {
			k.labs, k.onLab = k.labs+1, 0
		}
		k.onLab++
		last := k.onLab == k.options.freshEvery || number == k.options.runs
		run := soak.Run{Number: number, Lab: k.labs, OnLab: k.onLab, Began: time.Now()}
		e := k.lab.run(ctx, k.scenario, fmt.Sprintf("%s, run %d", k.scenario.Incident.Name, number), !last)
		if ctx.Err() != nil {
			return e.Left()
		}
		r, there := e.Report()
		if !there || e.Left() != nil {
			return errors.Join(e.Broken(), e.Left())
		}
		k.describe(&run, r, e.Broken())
		run.Kept = k.lab.up
		k.count(ctx, &run, e.Dir())
		if ctx.Err() != nil {
			run.NotCounted, run.Counts = "interrupted", nil
		}
		if err := run.Append(k.dir); err != nil {
			return err
		}
		k.note(fmt.Sprintf("run %d, on lab %d: %s", number, k.labs, says(run)))
		if err := k.prune(run, e.Dir()); err != nil {
			return err
		}
		if e.Broken() != nil && broke {
			return e.Broken()
		}
		broke = e.Broken() != nil
	}
	return nil
}

// describe takes what the soak needs of a report.
func (k *soaking) describe(run *soak.Run, r report.Report, broken error) {
	run.Verdict, run.TotalMS = r.Verdict, r.Timings.Total
	if run.OnLab == 1 {
		run.LabMS = &r.Timings.Lab
	}
	if broken != nil {
		run.Why = append(run.Why, broken.Error())
	}
	if r.Verdict != string(framework.Pass) || k.options.keepReports {
		run.Report = filepath.Join(r.Scenario, r.Run, page.Name)
	}
	for _, v := range r.Variants {
		one := soak.Variant{Name: v.Name, Expected: v.Expected, Verdict: v.Verdict, TotalMS: v.ElapsedMS}
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
		run.Variants = append(run.Variants, one)
		for _, reason := range v.Reasons {
			run.Why = append(run.Why, v.Name+": "+reason)
		}
	}
}

// says tells of a run in a line.
func says(run soak.Run) string {
	var parts []string
	for _, v := range run.Variants {
		parts = append(parts, v.Name+" "+v.Verdict)
	}
	text := fmt.Sprintf("%s (%s) in %s", run.Verdict, strings.Join(parts, ", "), lasting(time.Duration(run.TotalMS)*time.Millisecond))
	if len(run.Why) > 0 {
		text += ": " + strings.Join(run.Why, "; ")
	}
	return text
}

// prune removes the report of the run before that passed, when another has passed.
func (k *soaking) prune(run soak.Run, dir string) error {
	if run.Verdict != string(framework.Pass) || k.options.keepReports {
		return nil
	}
	before := k.passed
	k.passed = dir
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

// count counts what there is after a run.
func (k *soaking) count(ctx context.Context, run *soak.Run, dir string) {
	ctx, cancel := context.WithTimeout(ctx, countsWithin)
	defer cancel()
	counts, err := countProgram(k.temp)
	files, size, filesErr := filesBelow(dir)
	counts["report: files of a run"], counts["report: size of a run"] = files, size
	lab, left, labErr := countLab(ctx, k.docker, k.scenario.Topology.Name)
	machine, machineErr := countMachine(ctx, k.docker)
	if err := errors.Join(err, filesErr, labErr, machineErr); err != nil {
		run.NotCounted = err.Error()
		return
	}
	for _, more := range []map[string]int64{lab, machine} {
		for name, n := range more {
			counts[name] = n
		}
	}
	run.Counts = counts
	if !run.Kept {
		run.Left = left
	}
}

// countProgram counts what this process has. Its memory is looked at when all that
// can be given back is.
func countProgram(temp string) (map[string]int64, error) {
	debug.FreeOSMemory()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	counts := map[string]int64{
		"relapse: goroutines": int64(runtime.NumGoroutine()), "relapse: heap": int64(memory.HeapAlloc),
	}
	var errs []error
	for name, path := range map[string]string{"relapse: open files": "/proc/self/fd", "relapse: threads": "/proc/self/task"} {
		entries, err := os.ReadDir(path)
		counts[name] = int64(len(entries))
		errs = append(errs, err)
	}
	children, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is right
	for _, path := range children {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // the thread has ended
			continue
		}
		counts["relapse: children"] += int64(len(strings.Fields(string(text))))
		errs = append(errs, err)
	}
	// proc_pid_statm(5): size resident ... in pages
	var pages, resident int64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &pages, &resident)
	}
	counts["relapse: resident memory"] = resident * int64(os.Getpagesize())
	files, _, err2 := filesBelow(temp)
	counts["relapse: temporary files"] = files
	if err := errors.Join(append(errs, err, err2)...); err != nil {
		return counts, fmt.Errorf("counting what relapse itself has: %w", err)
	}
	return counts, nil
}

// filesBelow counts what is in a folder, and the bytes of its files.
func filesBelow(dir string) (files, size int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		files++
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return files, size, err
}

// countLab counts what there is of a lab. Where it has been taken down left is what
// should not be there.
func countLab(ctx context.Context, docker *client.Client, lab string) (counts map[string]int64, left []string, err error) {
	n, err := kindlab.Count(ctx, docker, lab)
	if err != nil {
		return nil, nil, err
	}
	for _, there := range []struct {
		n    int
		what string
	}{{n.Containers, "containers"}, {n.Networks, "Docker networks"}, {n.Tables, "nftables tables"}, {n.Files, "files of its state"}} {
		if there.n > 0 {
			left = append(left, fmt.Sprintf("%s: %d", there.what, there.n))
		}
	}
	return map[string]int64{
		"lab: containers": int64(n.Containers), "lab: networks": int64(n.Networks), "lab: files of its state": int64(n.Files),
		"lab: processes": int64(n.Processes), "lab: network namespaces of pods": int64(n.Namespaces),
		"lab: links": int64(n.Inside.Links), "lab: routes": int64(n.Inside.Routes),
		"lab: rules of nftables": int64(n.Inside.Rules), "lab: rules of iptables-legacy": int64(n.Inside.LegacyRules),
	}, left, nil
}

// countMachine counts what there is on this machine, whoever has made it.
func countMachine(ctx context.Context, docker *client.Client) (map[string]int64, error) {
	n, err := kindlab.CountMachine(ctx, docker)
	if err != nil {
		return nil, err
	}
	return map[string]int64{
		"machine: volumes": int64(n.Volumes), "machine: network namespaces": int64(n.Namespaces), "machine: mounts": int64(n.Mounts),
		"machine: links": int64(n.Links), "machine: routes": int64(n.Routes),
		"machine: rules of nftables": int64(n.Rules), "machine: rules of iptables-legacy": int64(n.LegacyRules),
	}, nil
}
