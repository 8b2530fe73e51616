package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// BuildError says that an image could not be built. The cause is in a log.
type BuildError struct {
	Ref string
	// Log is the path of the whole log, Tail its last lines.
	Log  string
	Tail []string
	Err  error
}

func (e *BuildError) Error() string {
	return fmt.Sprintf("building image %s: %v: %s; the log %s ends with\n\t%s",
		e.Ref, e.Err, e.Complaint(), e.Log, strings.Join(e.Tail, "\n\t"))
}

// RelapseStatus is 3: the machine cannot run it.
func (*BuildError) RelapseStatus() int { return 3 }

// Complaint is the line that says most of why the build failed: the first of a compiler, or else the last of all.
func (e *BuildError) Complaint() string {
	for _, line := range e.Tail {
		if strings.Contains(line, ".go:") {
			return strings.TrimSpace(line)
		}
	}
	if len(e.Tail) > 0 {
		return strings.TrimSpace(e.Tail[len(e.Tail)-1])
	}
	return "it says nothing"
}

func (e *BuildError) Unwrap() error { return e.Err }

// tailLines is how many lines of a log an error shows: a compiler's or apt-get's message, and it fits a terminal.
const tailLines = 15

type buildLog struct{ file *os.File }

func (c *cache) newLog(name string) (*buildLog, error) {
	f, err := os.Create(filepath.Join(c.dir, "logs", fileName(name)+".log"))
	if err != nil {
		return nil, fmt.Errorf("creating a build log: %w", err)
	}
	return &buildLog{f}, nil
}

// close closes the log and says that building ref failed, if it did: with the log's end if a command in it failed.
func (l *buildLog) close(ctx context.Context, ref string, err error) error {
	l.file.Close()
	switch {
	case err == nil || errors.As(err, new(*BuildError)):
		return err
	case ctx.Err() != nil || !errors.As(err, new(*exec.ExitError)):
		return fmt.Errorf("building image %s: %w", ref, err)
	}
	tail, readErr := l.tail()
	return &BuildError{Ref: ref, Log: l.file.Name(), Tail: tail, Err: errors.Join(err, readErr)}
}

func (l *buildLog) tail() ([]string, error) {
	data, err := os.ReadFile(l.file.Name())
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return lines[max(0, len(lines)-tailLines):], nil
}

// BesideLab is a context in which Build's commands yield the CPUs to a lab, which runs at the same time.
func BesideLab(ctx context.Context) context.Context { return context.WithValue(ctx, besideLab{}, true) }

type besideLab struct{}

// lowest is the priority of a process that runs when no other does.
const lowest = 19

// yields gives the leader of a session the lowest priority, which its children inherit. Where
// the kernel schedules by session (sched(7), "The autogroup feature"), the priority of a process
// counts within its session alone, and the session's priority counts against other sessions. A priority
// that cannot be set makes the lab slower and no verdict wrong.
func yields(pid int) {
	_ = unix.Setpriority(unix.PRIO_PGRP, pid, lowest)
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(strconv.Itoa(lowest)), 0)
}

// run runs a command with its output in the log; its Stderr, where it is set, gets both outputs as well. When ctx
// ends, the command and its children are killed; they are also killed if this process dies.
func (l *buildLog) run(ctx context.Context, cmd *exec.Cmd) error {
	// Pdeathsig is sent when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fmt.Fprintf(l.file, "+ %s\n", strings.Join(cmd.Args, " "))
	var out io.Writer = l.file
	if cmd.Stderr != nil {
		out = io.MultiWriter(l.file, cmd.Stderr)
	}
	cmd.Stdout, cmd.Stderr = out, out
	beside, _ := ctx.Value(besideLab{}).(bool)
	// A session of its own is a process group of its own, too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: beside, Setpgid: !beside, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	if beside {
		yields(cmd.Process.Pid)
	}
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", cmd.Args[0], err)
	}
	return nil
}
