// Package parallel runs processes in parallel, as many as this machine has room for.
//
// Scenarios that run side by side have a process each, because a process that crashes leaves
// the other labs and reports alone.
package parallel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// Job is a process of this program.
type Job struct {
	Name string
	Args []string
	Room int // how much of Pool.Room it takes, at least 1
}

// Pool runs jobs.
type Pool struct {
	Room        int // for jobs that run at the same time
	Out, ErrOut io.Writer
	// Progress, if it is not nil, reads what a process writes to the file descriptor
	// ProgressFD, until its end.
	Progress func(job string, from io.Reader)
}

// ProgressFD is the file descriptor of a job's progress.
const ProgressFD = 3 // the first of exec.Cmd.ExtraFiles

// Run runs jobs in the order given, and writes each line of their output after the name
// of its job. It returns their exit statuses: -1 for a job that was killed, and
// interrupted for one that did not start before ctx ended. When ctx ends, jobs get SIGINT.
func (p Pool) Run(ctx context.Context, jobs []Job, interrupted int) ([]int, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program, to run scenarios in parallel: %w", err)
	}
	width := 0
	for _, j := range jobs {
		width = max(width, len(j.Name))
	}
	statuses := make([]int, len(jobs))
	var (
		group errgroup.Group // an error does not end the other jobs
		lines sync.Mutex
		free  = semaphore.NewWeighted(int64(p.Room))
	)
	for i, j := range jobs {
		takes := int64(min(p.Room, j.Room))
		if free.Acquire(ctx, takes) != nil {
			statuses[i] = interrupted
			continue
		}
		group.Go(func() (err error) {
			defer free.Release(takes)
			prefix := fmt.Sprintf("%-*s | ", width, j.Name)
			out, errOut := &lineWriter{to: p.Out, lines: &lines, prefix: prefix}, &lineWriter{to: p.ErrOut, lines: &lines, prefix: prefix}
			if statuses[i], err = p.run(ctx, program, j, out, errOut); err != nil {
				return fmt.Errorf("running scenario %q: %w", j.Name, err)
			}
			if err := errors.Join(out.flush(), errOut.flush()); err != nil {
				return fmt.Errorf("printing the output of scenario %q: %w", j.Name, err)
			}
			return nil
		})
	}
	return statuses, group.Wait()
}

// run runs a job to its end, and returns its exit status.
func (p Pool) run(ctx context.Context, program string, j Job, out, errOut io.Writer) (int, error) {
	cmd := exec.CommandContext(ctx, program, j.Args...)
	cmd.Stdout, cmd.Stderr = out, errOut
	// A terminal's Ctrl-C reaches this process only, which signals its children once. If
	// this process is killed, the kernel signals them when the thread that started them
	// ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	read, err := p.readProgress(j.Name, cmd)
	if err != nil {
		return 0, err
	}
	err = cmd.Run()
	read()
	if cmd.ProcessState == nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// readProgress reads the progress of a process that is about to start. read waits for its
// end, after that of the process.
func (p Pool) readProgress(job string, cmd *exec.Cmd) (read func(), err error) {
	if p.Progress == nil {
		return func() {}, nil
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{to}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Progress(job, from)
		_, _ = io.Copy(io.Discard, from) // so that the process is not blocked
	}()
	return func() {
		_ = to.Close()
		<-ended
		_ = from.Close()
	}, nil
}

// lineWriter writes whole lines, each after a prefix. It accepts everything, also when
// writing fails: a process whose output is refused would end in the middle of its run.
// flush returns the first error.
type lineWriter struct {
	to     io.Writer
	lines  *sync.Mutex // one line at a time, of all that write to the same output
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

// flush writes a last line that has no end.
func (p *lineWriter) flush() error {
	if len(p.rest) > 0 {
		p.line(p.rest)
		p.rest = nil
	}
	return p.err
}
