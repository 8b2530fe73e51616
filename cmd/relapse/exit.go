package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/kindlab"
	"github.com/relapse-dev/relapse/topology/machine"
)

// Exit statuses, as `relapse --help` promises them.
const (
	exitExpected     = 0
	exitUnexpected   = 1
	exitUsage        = 2
	exitMachine      = 3
	exitInconclusive = 4
	exitInterrupted  = 130
)

// usageError is bad usage or bad input.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// verdictError says that a run ended, but not with a pass.
type verdictError struct{ verdict framework.RunVerdict }

func (e *verdictError) Error() string { return "verdict: " + string(e.verdict) }

// exitStatus maps what a command returned to the process's exit status.
func exitStatus(ctx context.Context, err error) int {
	var (
		usage   *usageError
		invalid *topology.InvalidError
		unknown *images.UnknownImageError
		build   *images.BuildError
		unfit   *machine.UnfitError
		held    *kindlab.HeldError
		overlap *kindlab.OverlapError
		verdict *verdictError
	)
	switch {
	case ctx.Err() != nil || errors.Is(err, framework.ErrInterrupted):
		return exitInterrupted
	case err == nil:
		return exitExpected
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &unknown):
		return exitUsage
	case errors.As(err, &build), errors.As(err, &unfit), errors.As(err, &held), errors.As(err, &overlap):
		return exitMachine
	case errors.As(err, &verdict) && verdict.verdict == framework.Inconclusive:
		return exitInconclusive
	}
	return exitUnexpected
}
