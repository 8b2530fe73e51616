// Package portable has the commands that need no lab, and other code that relapse and kubectl-relapse share.
// kubectl-relapse builds for each platform of kubectl.
package portable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/status"
)

// Exit statuses, as `relapse --help` promises them.
const (
	ExitExpected     = 0
	ExitUnexpected   = 1
	ExitUsage        = 2
	ExitMachine      = 3
	ExitInconclusive = 4
	ExitLatent       = 5 // audit alone
	ExitFailed       = 6 // the command itself
	ExitInterrupted  = 130
)

// Settings are the flags that every command has.
type Settings struct {
	logLevel string
	Quiet    bool
}

// Logger returns the log at the level of --log-level. It also sets the log of Kubernetes' libraries.
func (s *Settings) Logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, status.Input("--log-level: %q: expected debug, info, warn or error", s.logLevel)
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	// Kubernetes' libraries log each broken connection as an error, and labs break them. Callers get real errors as well.
	libraries := logr.Discard()
	if level <= slog.LevelDebug {
		libraries = logr.FromSlogHandler(log.Handler())
	}
	klog.SetLogger(libraries)
	runtimelog.SetLogger(libraries)
	return log, nil
}

// self is the command by which the user calls this program: kubectl runs a program named kubectl-relapse as a plugin.
func self() string {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "kubectl-relapse" {
		return "kubectl relapse"
	}
	return "relapse"
}

// Root is a program without its commands.
func Root(s *Settings, short, long string) *cobra.Command {
	root := &cobra.Command{
		Use:           "relapse",
		Short:         short,
		Long:          long,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: self()},
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          NoCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&s.logLevel, "log-level", "warn", "what to log on standard error: debug, info, warn or error")
	root.PersistentFlags().BoolVar(&s.Quiet, "quiet", false, "print no progress: only results and errors")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return status.Input("%w (see %s --help)", err, cmd.CommandPath())
	})
	return root
}

// NoCommand refuses arguments, as commands that do not exist.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := each.Of(cmd.Commands(), (*cobra.Command).Name)
	return status.Input("no command %q%s", args[0], topology.Nearest(args[0], names))
}

// Ended is the error of a command that is done, with another status than 0. Without Why, nothing more is printed.
type Ended struct {
	Status int
	Why    error
	// watched is set if the command ends by an interrupt.
	watched bool
}

func (e *Ended) Error() string {
	if e.Why == nil {
		return fmt.Sprintf("status %d", e.Status)
	}
	return e.Why.Error()
}

func (e *Ended) Unwrap() error { return e.Why }

// RelapseStatus is the exit status.
func (e *Ended) RelapseStatus() int { return e.Status }

// Complaint is what a program prints for an error of its commands; empty: nothing.
func Complaint(ctx context.Context, err error) string {
	var ended *Ended
	switch {
	case err == nil, errors.As(err, &ended) && ended.Why == nil:
		return ""
	case ctx.Err() != nil:
		// Each running step returns an error that says it was cancelled: one word replaces all of them.
		return "interrupted"
	}
	return err.Error()
}

// ExitStatus is the exit status of a program after an error of its commands.
func ExitStatus(ctx context.Context, err error) int {
	var ended *Ended
	switch {
	case errors.As(err, &ended) && ended.watched:
		return ended.Status
	case ctx.Err() != nil:
		return ExitInterrupted
	}
	return StatusOf(err)
}

// StatusOf is the lowest exit status of an error and the errors that it wraps: a failed verdict outweighs bad input,
// and bad input outweighs an unsuitable machine. Without a status it is the status of a failure of the command.
func StatusOf(err error) int {
	switch {
	case err == nil:
		return ExitExpected
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, fs.ErrPermission):
		return min(ExitMachine, stated(err))
	}
	return stated(err)
}

// stated uses a method name that only relapse has: other errors, such as ssh's, have a method ExitStatus.
func stated(err error) int {
	status := ExitFailed
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

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return status.Input("%s takes no argument, not %q", cmd.CommandPath(), strings.Join(args, " "))
	}
	return nil
}

// ExactArgs demands n arguments, of 1 to 3; what says what they are.
func ExactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return status.Input("%s takes %s, %s", cmd.CommandPath(), []string{"one argument", "two arguments", "three arguments"}[n-1], what)
		}
		return nil
	}
}

// SomeArgs demands one argument or more; what says what they are.
func SomeArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return status.Input("%s needs %s", cmd.CommandPath(), what)
		}
		return nil
	}
}
