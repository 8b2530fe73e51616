// Command relapse reproduces documented Kubernetes network incidents on real
// clusters, and asserts that each is detected and that the remedies work.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/docker/docker/client"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	runtimelog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if text := complaint(ctx, err); text != "" {
		fmt.Fprintln(os.Stderr, "relapse: "+text)
	}
	return exitStatus(ctx, err)
}

// complaint is what a failed command writes to standard error.
func complaint(ctx context.Context, err error) string {
	var verdict *verdictError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &verdict) && verdict.broken == nil:
		return "" // it has been printed as a table
	case ctx.Err() != nil && !errors.Is(err, engine.ErrInterrupted):
		// Each step under way returns an error that says it was cancelled:
		// one word stands for them all.
		return engine.ErrInterrupted.Error()
	case client.IsErrConnectionFailed(err) && strings.Contains(err.Error(), "\n"):
		// All that was under way, and what takes the lab down, has failed for one reason.
		return "Docker does not answer any more: start it (see relapse doctor), and remove what is left of the lab (relapse down)"
	}
	return err.Error()
}

// settings are the global flags.
type settings struct {
	logLevel string
	noColor  bool
	quiet    bool
	// earlier is where displays look for earlier runs; nil where there are none.
	earlier func(scenario string, steps []engine.Step) []timing
	// several is whether displays show several runs at once.
	several bool
	// onTerminal is the display of this process, which the log goes through where both
	// are on one terminal.
	onTerminal atomic.Pointer[shown]
}

// Write writes to standard error.
func (s *settings) Write(text []byte) (int, error) {
	if d := s.onTerminal.Load(); d != nil && d.terminal != nil && term.IsTerminal(int(os.Stderr.Fd())) {
		return d.Write(text)
	}
	return os.Stderr.Write(text)
}

// logger makes the log of this process, and says what the libraries' are.
func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, usagef("--log-level: %q is none of debug, info, warn, error", s.logLevel)
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

func command() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:   "relapse",
		Short: "Reproduce documented Kubernetes network incidents, and prove that they are detected and healed",
		Long: `relapse builds clusters with BGP routers, makes documented incidents happen on
them with the vendors' own code, and asserts that each is detected and that
each remedy works.

Exit status: 0 all verdicts as expected, GO, or done; 1 some were not, NO-GO, both
ends of a bisection are alike, something grows in a soak, or the command failed; 2 bad
usage or bad input; 3 this machine cannot run it (see relapse doctor); 4 inconclusive,
UNKNOWN, or a bisection has only a range; 130 interrupted, after the lab was taken down.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&s.logLevel, "log-level", "warn", "what to log on standard error: debug, info, warn or error")
	root.PersistentFlags().BoolVar(&s.quiet, "quiet", false, "print nothing of what goes on: only what came of it, and errors")
	root.PersistentFlags().BoolVar(&s.noColor, "no-color", os.Getenv("NO_COLOR") != "", "print no colours; NO_COLOR in the environment does the same")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see relapse %s --help)", err, cmd.Name())
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
		soakCommand(&s),
	)
	return root
}

// noCommand is the root's argument check: an argument there is a command
// that does not exist.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return usagef("no command %q%s", args[0], topology.Nearest(args[0], names))
}
