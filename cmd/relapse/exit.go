package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/status"
)

// Exit statuses, as `relapse --help` promises them.
const (
	exitExpected     = 0
	exitUnexpected   = 1
	exitUsage        = 2
	exitMachine      = 3
	exitInconclusive = 4
	exitLatent       = 5 // audit alone
	exitFailed       = 6 // the command itself
	exitInterrupted  = 130
)

func usagef(format string, args ...any) error { return status.Input(format, args...) }

type verdictError struct {
	verdict framework.RunVerdict
	// broken is why parts of the run could not be judged. It may be nil.
	broken error
}

func (e *verdictError) Error() string {
	if e.broken == nil {
		return "verdict: " + string(e.verdict)
	}
	return e.broken.Error()
}

func (e *verdictError) Unwrap() error { return e.broken }

func (e *verdictError) RelapseStatus() int {
	if e.verdict == framework.Fail {
		return exitUnexpected
	}
	return exitInconclusive
}

func (e *auditError) RelapseStatus() int { return e.status }

func judgedAs(v framework.RunVerdict, broken error) error {
	if (v == framework.Pass || v == framework.Observed) && broken == nil {
		return nil
	}
	return &verdictError{v, broken}
}

func requireRoot() error {
	if uid := os.Geteuid(); uid != 0 {
		return status.Machine("relapse must run as root (found: uid %d): run it with sudo", uid)
	}
	return nil
}

func exitStatus(ctx context.Context, err error) int {
	var audited *auditError
	switch {
	case errors.As(err, &audited) && audited.watched:
		return audited.status
	case ctx.Err() != nil || errors.Is(err, engine.ErrInterrupted):
		return exitInterrupted
	}
	return statusOf(err)
}

// statusOf is the lowest exit status that an error states, or one that it wraps: a failed verdict
// outweighs bad input, and that a machine that cannot run it. An error that states none
// is a failure of the command.
func statusOf(err error) int {
	switch {
	case err == nil:
		return exitExpected
	case client.IsErrConnectionFailed(err), errors.Is(err, syscall.ENOSPC), errors.Is(err, fs.ErrPermission):
		return min(exitMachine, stated(err))
	}
	return stated(err)
}

// stated asks for a method of relapse's own: ssh's errors, among others, have an ExitStatus as well.
func stated(err error) int {
	status := exitFailed
	if states, does := err.(interface{ RelapseStatus() int }); does {
		status = states.RelapseStatus()
	}
	switch wraps := err.(type) {
	case interface{ Unwrap() error }:
		status = min(status, stated(wraps.Unwrap()))
	case interface{ Unwrap() []error }:
		for _, one := range wraps.Unwrap() {
			status = min(status, stated(one))
		}
	}
	return status
}
