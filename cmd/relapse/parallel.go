package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/host"
)

// sideBySide runs scenarios in processes of their own, at most n at once and fewer
// beside one that takes the room of several, with the flags that this process was
// given. What they print is printed here, each line behind the name of its scenario.
// With a display, which is on a terminal, they tell that what they do; it is nil where
// there is none.
func sideBySide(ctx context.Context, set *settings, chosen []framework.Scenario, flags *pflag.FlagSet, n int, common *display, out, errOut io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("looking for this program, to run scenarios side by side: %w", err)
	}
	width := 0
	for _, s := range chosen {
		width = max(width, len(s.Incident.Name))
	}
	began := time.Now()
	statuses := make([]int, len(chosen))
	var (
		group errgroup.Group // its errors do not end the others
		lines sync.Mutex
		free  = semaphore.NewWeighted(int64(n))
	)
	if common != nil {
		out, errOut = common, common
	}
	for i, s := range chosen {
		args := childArgs(s, flags) // which may not be read by two at once
		if common != nil {
			args = append(args, "--"+progressFlag+"=3") // the first of ExtraFiles
		}
		takes := int64(min(n, rooms(s)))
		if free.Acquire(ctx, takes) != nil {
			statuses[i] = exitInterrupted
			continue
		}
		group.Go(func() error {
			defer free.Release(takes)
			prefix := fmt.Sprintf("%-*s | ", width, s.Incident.Name)
			stdout, stderr := &lineWriter{to: out, lines: &lines, prefix: prefix}, &lineWriter{to: errOut, lines: &lines, prefix: prefix}
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Stdout, cmd.Stderr = stdout, stderr
			// A terminal's Ctrl-C reaches this process alone, which tells its children
			// once. If it is killed, the kernel tells them, when the thread that
			// started them has ended.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
			told, err := shownBy(common, s.Incident.Name, cmd)
			if err != nil {
				return err
			}
			err = cmd.Run()
			told()
			if cmd.ProcessState == nil {
				return fmt.Errorf("running scenario %q: %w", s.Incident.Name, err)
			}
			statuses[i] = cmd.ProcessState.ExitCode()
			if err := errors.Join(stdout.flush(), stderr.flush()); err != nil {
				return fmt.Errorf("printing what scenario %q says: %w", s.Incident.Name, err)
			}
			return nil
		})
	}
	err = group.Wait()
	if common != nil {
		common.Close()
		out = common.out
	}
	if err != nil {
		return err
	}
	if !set.quiet {
		fmt.Fprintf(out, "\nscenarios: %d in %s, up to %d at once\n", len(chosen), time.Since(began).Round(time.Second), min(n, len(chosen)))
	}
	if ctx.Err() != nil {
		return engine.ErrInterrupted
	}
	return outcomeOf(chosen, statuses)
}

// rooms is how many labs could run in place of a scenario's. Each guest has a CPU for
// itself: with four on two CPUs, a lab beside them takes up to twice its time, and now
// and then a read that it waits for takes too long.
func rooms(s framework.Scenario) int {
	guests := 0
	for _, c := range s.Topology.Clusters {
		for _, n := range c.Nodes {
			if n.Kernel != "" {
				guests++
			}
		}
	}
	return max(1, guests)
}

// longestFirst orders scenarios so that what is left for the end is short: then all that
// run side by side end at about the same time. Those that take the room of several come
// before the others, as nobody can fill the room beside them, and one that was not
// measured before those that were.
func longestFirst(all []framework.Scenario, recorded figures.File) []framework.Scenario {
	lasts := func(s framework.Scenario) time.Duration {
		if usual, known := usually(s, nil, recorded); known {
			return usual
		}
		return math.MaxInt64
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b framework.Scenario) int {
		return cmp.Or(cmp.Compare(rooms(b), rooms(a)), cmp.Compare(lasts(b), lasts(a)))
	})
}

// progressFlag is given to a process that is to tell what it does to the one that has
// started it, by a file that is open in it.
const progressFlag = "progress-fd"

// shownBy has a process that is about to start tell a display what it does. What it
// returns waits for the last of that, when the process has ended.
func shownBy(common *display, scenario string, cmd *exec.Cmd) (told func(), err error) {
	if common == nil {
		return func() {}, nil
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("running scenario %q: %w", scenario, err)
	}
	cmd.ExtraFiles = []*os.File{to}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := receive(from, common.Scenario(scenario)); err != nil {
			common.Note(scenario, err.Error()) // the run goes on, and its report tells
			_, _ = io.Copy(io.Discard, from)
		}
	}()
	return func() {
		_ = to.Close()
		<-over
		_ = from.Close()
	}, nil
}

// childArgs is what the process for one scenario is called with: the flags that
// were set, and of variants and parameters those that this scenario has.
func childArgs(s framework.Scenario, flags *pflag.FlagSet) []string {
	args := []string{"run", s.Incident.Name, "--parallel", "1"}
	flags.Visit(func(f *pflag.Flag) {
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
			given, _ := flags.GetStringToString(f.Name) // it is one
			for _, p := range s.Parameters {
				if value, ok := given[p.Name]; ok {
					values = append(values, p.Name+"="+value)
				}
			}
		case "with":
			given, _ := flags.GetStringToString(f.Name) // it is one
			for _, name := range slices.Sorted(maps.Keys(given)) {
				if _, there := s.Find(name); there {
					values = append(values, name+"="+given[name])
				}
			}
		case "upstream":
			given, _ := flags.GetStringToString(f.Name) // it is one
			for host, url := range given {
				values = append(values, host+"="+url)
			}
		default:
			values = []string{f.Value.String()}
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

// notAllPassed says which of several scenarios did not end well.
type notAllPassed struct {
	status int      // the exit status of this process
	what   []string // scenario and its exit status, of those that did not pass
	of     int      // all scenarios
}

func (e *notAllPassed) Error() string {
	return fmt.Sprintf("%d of %d scenarios did not pass: %s", len(e.what), e.of, strings.Join(e.what, ", "))
}

// outcomeOf is what processes with these exit statuses came to together. A failed
// verdict, or a process that was killed, outweighs a machine that cannot run a
// scenario, and that outweighs a run that could not be judged.
func outcomeOf(chosen []framework.Scenario, statuses []int) error {
	// From the least to the worst; whatever is not among them is the worst.
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

// lineWriter writes whole lines, each behind a prefix. It takes all that it is given,
// also when writing fails: a child whose output is refused would end in the middle
// of its run. flush returns the first error.
type lineWriter struct {
	to     io.Writer
	lines  *sync.Mutex // a line at a time, of all that write to the same place
	prefix string
	rest   []byte // of a line that has not ended
	err    error
}

func (p *lineWriter) Write(data []byte) (int, error) {
	p.rest = append(p.rest, data...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(data), nil
		}
		p.line(line)
		p.rest = rest
	}
}

func (p *lineWriter) line(line []byte) {
	p.lines.Lock()
	defer p.lines.Unlock()
	if _, err := fmt.Fprintf(p.to, "%s%s\n", p.prefix, line); p.err == nil {
		p.err = err
	}
}

// flush writes what is left of a last line that has no end.
func (p *lineWriter) flush() error {
	if len(p.rest) > 0 {
		p.line(p.rest)
		p.rest = nil
	}
	return p.err
}

// What a lab is given when labs run side by side; one with guests has that for each of
// them (rooms). With three labs on two CPUs verdicts have changed.
const (
	labCPUs = 1
	labGiB  = 4
)

// atOnce is how many labs this machine runs side by side.
func atOnce() int { return labsFor(runtime.NumCPU(), host.MemoryGiB()) }

func labsFor(cpus, gib int) int { return max(1, min(cpus/labCPUs, gib/labGiB)) }
