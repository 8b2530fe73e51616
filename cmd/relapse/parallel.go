package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/parallel"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology/host"
)

// runParallel runs scenarios in processes of their own, at most n at a time, with the
// flags of this process. Their output is printed after the names of the scenarios. If
// common is not nil, it is drawn on a terminal and shows their progress.
func runParallel(ctx context.Context, set *settings, chosen []framework.Scenario, flags *pflag.FlagSet, n int, common *display.Display) error {
	began := time.Now()
	pool := parallel.Pool{Room: n, Out: os.Stdout, ErrOut: os.Stderr}
	var jobs []parallel.Job
	for _, s := range chosen {
		jobs = append(jobs, parallel.Job{Name: s.Incident.Name, Args: childArgs(s, flags), Room: suite.Rooms(s)})
	}
	if common != nil {
		pool.Out, pool.ErrOut = common, common
		pool.Progress = func(scenario string, from io.Reader) {
			if err := display.Receive(from, common.Scenario(scenario)); err != nil {
				common.Note(scenario, err.Error()) // the run continues, and has a report
			}
		}
		for i := range jobs {
			jobs[i].Args = append(jobs[i].Args, fmt.Sprintf("--%s=%d", progressFlag, parallel.ProgressFD))
		}
	}
	statuses, err := pool.Run(ctx, jobs, exitInterrupted)
	if common != nil {
		common.Close()
	}
	if err != nil {
		return err
	}
	if !set.quiet {
		fmt.Printf("\nscenarios: %d in %s, up to %d at once\n", len(chosen), time.Since(began).Round(time.Second), min(n, len(chosen)))
	}
	if ctx.Err() != nil {
		return engine.ErrInterrupted
	}
	return outcomeOf(chosen, statuses)
}

// longestFirst orders scenarios so that those that run in parallel end at about the same
// time. Scenarios that take the room of several come first, and scenarios without a
// measurement before those with one.
func longestFirst(all []framework.Scenario, recorded figures.File) []framework.Scenario {
	lasts := func(s framework.Scenario) time.Duration {
		if usual, known := usually(s, nil, recorded); known {
			return usual
		}
		return math.MaxInt64
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b framework.Scenario) int {
		return cmp.Or(cmp.Compare(suite.Rooms(b), suite.Rooms(a)), cmp.Compare(lasts(b), lasts(a)))
	})
}

// progressFlag has a process send its progress to the process that started it, through
// this open file.
const progressFlag = "progress-fd"

// childArgs are the arguments of the process for one scenario: the flags that were set,
// and of variants, parameters and versions those that the scenario has.
func childArgs(s framework.Scenario, flags *pflag.FlagSet) []string {
	args := []string{"run", s.Incident.Name, "--parallel", "1"}
	flags.Visit(func(f *pflag.Flag) {
		given, _ := flags.GetStringToString(f.Name) // nil for a flag of another type
		pairs := func(has func(name string) bool) (values []string) {
			for _, name := range slices.Sorted(maps.Keys(given)) {
				if has(name) {
					values = append(values, name+"="+given[name])
				}
			}
			return values
		}
		var values []string
		switch f.Name {
		case "parallel", "all":
			return
		case "variant":
			wanted, _ := flags.GetStringSlice(f.Name) // it is one
			for _, v := range s.Variants {
				if slices.Contains(wanted, v.Name) {
					values = append(values, v.Name)
				}
			}
		case "set":
			values = pairs(func(name string) bool {
				return slices.ContainsFunc(s.Parameters, func(p framework.Parameter) bool { return p.Name == name })
			})
		case "with":
			values = pairs(func(name string) bool { _, there := s.Find(name); return there })
		case "subnets": // the scenario's part of them
			if part, moved := s.MovedInto(); moved {
				values = []string{part.String()}
			}
		case "upstream":
			values = pairs(func(string) bool { return true })
		default:
			values = []string{f.Value.String()}
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// notAllPassed says which of several scenarios did not pass.
type notAllPassed struct {
	status int      // the exit status of this process
	what   []string // scenario and its exit status, of those that did not pass
	of     int      // all scenarios
}

func (e *notAllPassed) Error() string {
	return fmt.Sprintf("%d of %d scenarios did not pass: %s", len(e.what), e.of, strings.Join(e.what, ", "))
}

// outcomeOf combines the exit statuses of processes. A failed verdict, or a process that
// was killed, outweighs a machine that cannot run a scenario, which outweighs a run that
// could not be judged.
func outcomeOf(chosen []framework.Scenario, statuses []int) error {
	// From the least to the worst. Any other status is the worst.
	order := []int{exitExpected, exitInterrupted, exitInconclusive, exitUsage, exitMachine, exitUnexpected}
	worst := 0
	failed := &notAllPassed{of: len(chosen)}
	for i, status := range statuses {
		if status != exitExpected {
			failed.what = append(failed.what, fmt.Sprintf("%s (exit status %d)", chosen[i].Incident.Name, status))
		}
		rank := slices.Index(order, status)
		if rank < 0 {
			rank = len(order) - 1
		}
		worst = max(worst, rank)
	}
	if worst == 0 {
		return nil
	}
	failed.status = order[worst]
	return failed
}

// atOnce is how many labs this machine runs in parallel.
func atOnce() int { return suite.AtOnce(runtime.NumCPU(), host.MemoryGiB()) }
