package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
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

// judgedAs is how a command ends with a verdict. Broken is why parts of the run could not be judged; it may be nil.
func judgedAs(v framework.RunVerdict, broken error) error {
	switch {
	case v == framework.Fail:
		return &portable.Ended{Status: exitUnexpected, Why: broken}
	case broken == nil && (v == framework.Pass || v == framework.Observed):
		return nil
	}
	return &portable.Ended{Status: exitInconclusive, Why: broken}
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

// remains returns an error that names the labs that this process has left, besides those of before,
// which it may have used again.
func remains(before []string) error {
	labs, err := kindlab.OwnWithState()
	labs = slices.DeleteFunc(labs, func(lab string) bool { return slices.Contains(before, lab) })
	if names := strings.Join(labs, " "); names != "" {
		err = errors.Join(err, fmt.Errorf("left on this machine: parts of %s; remove them: relapse down %[1]s", names))
	}
	return err
}

// oneSignal is how long a second signal is taken for the first one: timeout and make send it to
// a process and to its group.
const oneSignal = time.Second

func endAtNextSignal(before []string) {
	first, again := time.Now(), make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	for range again {
		if time.Since(first) < oneSignal {
			continue
		}
		fmt.Fprintln(os.Stderr, "relapse: interrupted again, and ended at once")
		if err := remains(before); err != nil {
			fmt.Fprintln(os.Stderr, "relapse:", err)
		}
		os.Exit(exitInterrupted)
	}
}
