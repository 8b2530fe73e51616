// Package portable has the commands of relapse that need no lab, and what both programs have besides:
// relapse, and kubectl-relapse, which builds for each machine that kubectl does.
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

// Logger is the log at the level of --log-level, and that of Kubernetes' libraries.
func (s *Settings) Logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, status.Input("--log-level: %q: expected debug, info, warn or error", s.logLevel)
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	// Kubernetes' libraries log each cut connection as an error, and this
	// harness cuts connections. A real error is returned to the caller as well.
	libraries := logr.Discard()
	if level <= slog.LevelDebug {
		libraries = logr.FromSlogHandler(log.Handler())
	}
	klog.SetLogger(libraries)
	runtimelog.SetLogger(libraries)
	return log, nil
}

// self is how a user calls this program. kubectl runs a program kubectl-relapse as its plugin.
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

// NoCommand refuses arguments: there they are commands that do not exist.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := each.Of(cmd.Commands(), (*cobra.Command).Name)
	return status.Input("no command %q%s", args[0], topology.Nearest(args[0], names))
}

// Ended is a command that is done, and does not end with status 0. Without a reason all is printed.
type Ended struct {
	Status int
	Why    error
	// watched is set if an interrupt is how it ends.
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

// Complaint is what a program says of an error of its commands; empty if all is printed.
func Complaint(ctx context.Context, err error) string {
	var ended *Ended
	switch {
	case err == nil, errors.As(err, &ended) && ended.Why == nil:
		return ""
	case ctx.Err() != nil:
		// Each running step returns an error that says it was cancelled: one word is enough for all.
		return "interrupted"
	}
	return err.Error()
}

// ExitStatus is what a program ends with after an error of its commands.
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

// StatusOf is the lowest exit status that an error states, or one that it wraps: a failed verdict outweighs bad input,
// and that a machine that cannot run it. An error that states none is a failure of the command.
func StatusOf(err error) int {
	switch {
	case err == nil:
		return ExitExpected
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, fs.ErrPermission):
		return min(ExitMachine, stated(err))
	}
	return stated(err)
}

// stated asks for a method of relapse's own: ssh's errors, among others, have an ExitStatus as well.
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
