package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/docker/docker/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/adopt"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Exit statuses, as `relapse --help` promises them.
const (
	exitExpected     = 0
	exitUnexpected   = 1
	exitUsage        = 2
	exitMachine      = 3
	exitInconclusive = 4
	exitLatent       = 5 // audit alone
	exitInterrupted  = 130
)

// usageError is bad usage or bad input.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// verdictError is a run that ended without a pass.
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

// judgedAs is the error that gives a verdict's exit status; nil for a pass.
func judgedAs(v framework.RunVerdict, broken error) error {
	if v == framework.Pass && broken == nil {
		return nil
	}
	return &verdictError{v, broken}
}

// requireRoot is for commands that need root, and no other check of the machine.
func requireRoot() error {
	uid := os.Geteuid()
	if uid == 0 {
		return nil
	}
	return &host.UnfitError{Checks: []host.Check{{
		Name: "root", State: host.Fatal, Found: fmt.Sprintf("uid %d", uid),
		Want: "relapse must run as root", Cure: "run it with sudo",
	}}}
}

// exitStatus maps what a command returned to the process's exit status.
func exitStatus(ctx context.Context, err error) int {
	var (
		usage   *usageError
		invalid *topology.InvalidError
		unknown *images.UnknownImageError
		version *images.UnknownVersionError
		form    *suite.FormError
		missing *images.NotPublishedError
		silent  *images.UnreachableError
		build   *images.BuildError
		unfit   *host.UnfitError
		setup   *setupError
		held    *kindlab.HeldError
		release *kindlab.OtherReleaseError
		overlap *kindlab.OverlapError
		boot    *guest.BootError
		image   *guest.ImageError
		vendor  *registry.UpstreamError
		unsafe  *rundir.UnsafeError
		verdict *verdictError
		audited *auditError
		input   *adopt.InputError
		noLab   *adopt.NoLabError
		lacking *adopt.MissingError
	)
	switch {
	case errors.As(err, &audited) && audited.watched:
		return audited.status
	case ctx.Err() != nil || errors.Is(err, engine.ErrInterrupted):
		return exitInterrupted
	case err == nil:
		return exitExpected
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &unknown), errors.As(err, &version), errors.As(err, &form), errors.As(err, &missing), errors.As(err, &unsafe),
		errors.As(err, &input), errors.As(err, &noLab):
		return exitUsage
	case errors.As(err, &audited):
		return audited.status
	case errors.As(err, &silent), errors.As(err, &build), errors.As(err, &unfit), errors.As(err, &setup),
		errors.As(err, &held), errors.As(err, &release), errors.As(err, &overlap), errors.As(err, &boot), errors.As(err, &image), errors.As(err, &vendor), errors.As(err, &lacking),
		client.IsErrConnectionFailed(err), errors.Is(err, syscall.ENOSPC), errors.Is(err, fs.ErrPermission):
		return exitMachine
	case errors.As(err, &verdict) && verdict.verdict == framework.Inconclusive:
		return exitInconclusive
	}
	return exitUnexpected
}
