// Command relapse reproduces documented Kubernetes network incidents on real
// clusters, and asserts that each is detected and that the remedies work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/moby/moby/client"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, _ := kindlab.WithState() // labs that stay up are not this command's
	defer context.AfterFunc(ctx, func() { endAtNextSignal(before) })()
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if text := complaint(ctx, err); text != "" {
		fmt.Fprintln(os.Stderr, "relapse: "+plain.Text(text))
	}
	if ctx.Err() != nil {
		if err := remains(before); err != nil {
			fmt.Fprintln(os.Stderr, "relapse: "+plain.Text(err.Error()))
		}
	}
	return exitStatus(ctx, err)
}

func complaint(ctx context.Context, err error) string {
	var verdict *verdictError
	var audited *auditError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &verdict) && verdict.broken == nil:
		return "" // printed as a table
	case errors.As(err, &audited) && audited.why == nil:
		return "" // printed
	case ctx.Err() != nil && !errors.Is(err, engine.ErrInterrupted):
		// Each running step returns an error that says it was cancelled: one word is
		// enough for all.
		return engine.ErrInterrupted.Error()
	case client.IsErrConnectionFailed(err) && several(err):
		// All steps, and taking the lab down, have failed for one reason.
		return "Docker stopped answering: start it (see relapse doctor), and remove what is left of the lab (relapse down)"
	}
	return err.Error()
}

func several(err error) bool {
	for err != nil {
		if joined, is := err.(interface{ Unwrap() []error }); is && len(joined.Unwrap()) > 1 {
			return true
		} else if is {
			err = joined.Unwrap()[0]
			continue
		}
		err = errors.Unwrap(err)
	}
	return false
}

// ignoreBrokenPipe has writes to a closed pipe fail. Otherwise the signal would end this
// process before its labs are down.
func ignoreBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

type settings struct {
	logLevel string
	noColor  bool
	quiet    bool
	// shown is the display of this process. The log is written through it if both are on
	// one terminal.
	shown atomic.Pointer[display.Display]
}

// Write writes to standard error.
func (s *settings) Write(text []byte) (int, error) {
	if d := s.shown.Load(); d != nil && d.Drawn() && term.IsTerminal(int(os.Stderr.Fd())) {
		return d.Write(text)
	}
	return os.Stderr.Write(text)
}

func (s *settings) display(l display.Look) *display.Display {
	terminal := display.IsTerminal(os.Stdout)
	l.Live, l.Color, l.Quiet = terminal, terminal && !s.noColor, s.quiet
	d := display.New(os.Stdout, l)
	s.shown.Store(d)
	return d
}

// notes is where a command says what it does, beside its results.
func (s *settings) notes() io.Writer {
	if s.quiet {
		return io.Discard
	}
	return plain.Writer(os.Stderr)
}

func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, usagef("--log-level: %q: expected debug, info, warn or error", s.logLevel)
	}
	log := slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: level}))
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
	if filepath.Base(os.Args[0]) == "kubectl-relapse" {
		return "kubectl relapse"
	}
	return "relapse"
}

func command() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:   "relapse",
		Short: "Reproduce documented Kubernetes network incidents, and prove that they are detected and remedied",
		Long: `relapse builds clusters with BGP routers, makes documented incidents happen on
them with the vendors' own code, and asserts that each is detected and that
each remedy works.

Exit status: 0 all verdicts as expected, GO, or done; 1 a verdict not as expected,
NO-GO, or both ends of a bisection are alike; 2 bad usage or bad input; 3 this machine
cannot run it (see relapse doctor); 4 inconclusive, UNKNOWN, or a bisection knows only a
range; 5 an audit found what is latent alone; 6 the command itself failed; 130
interrupted, after the lab was taken down.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: self()},
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&s.logLevel, "log-level", "warn", "what to log on standard error: debug, info, warn or error")
	root.PersistentFlags().BoolVar(&s.quiet, "quiet", false, "print no progress: only results and errors")
	root.PersistentFlags().BoolVar(&s.noColor, "no-color", os.Getenv("NO_COLOR") != "",
		"print no colours; NO_COLOR in the environment does the same")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(
		runCommand(&s),
		listCommand(),
		describeCommand(),
		pageCommand(),
		diffCommand(),
		mergeCommand(),
		planCommand(),
		judgeCommand(),
		archiveCommand(),
		upCommand(&s),
		downCommand(),
		doctorCommand(),
		setupCommand(),
		imagesCommand(&s),
		versionsCommand(),
		bisectCommand(&s),
		qualifyCommand(&s),
		adviseCommand(),
		bumpCommand(&s),
		auditCommand(&s),
		versionCommand(),
	)
	root.AddCommand(distCommands()...)
	return root
}

// noCommand refuses arguments: there they are commands that do not exist.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := each.Of(cmd.Commands(), (*cobra.Command).Name)
	return usagef("no command %q%s", args[0], topology.Nearest(args[0], names))
}
