package main

import (
	"context"
	"errors"
	"os"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/status"
)

const (
	exitExpected     = portable.ExitExpected
	exitUnexpected   = portable.ExitUnexpected
	exitUsage        = portable.ExitUsage
	exitMachine      = portable.ExitMachine
	exitInconclusive = portable.ExitInconclusive
	exitLatent       = portable.ExitLatent
	exitFailed       = portable.ExitFailed
	exitInterrupted  = portable.ExitInterrupted
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
	if errors.Is(err, engine.ErrInterrupted) {
		return exitInterrupted
	}
	return portable.ExitStatus(ctx, ofDocker(err))
}

func statusOf(err error) int { return portable.StatusOf(ofDocker(err)) }

// ofDocker gives an error of a Docker that does not answer its exit status: a machine that cannot run it.
func ofDocker(err error) error {
	if client.IsErrConnectionFailed(err) {
		return status.Machine("%w", err)
	}
	return err
}
