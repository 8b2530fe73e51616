// Command relapse reproduces documented Kubernetes network incidents on real
// clusters, and asserts that each is detected and that the remedies work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/status"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	before, _ := kindlab.WithState() // labs of earlier commands
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
	switch {
	case errors.Is(err, engine.ErrInterrupted):
		return err.Error()
	case ctx.Err() == nil && client.IsErrConnectionFailed(err) && several(err):
		// All steps, and taking the lab down, have failed for the same reason.
		return "Docker stopped answering: start it (see relapse doctor), and remove what is left of the lab (relapse down)"
	}
	return portable.Complaint(ctx, err)
}

func several(err error) bool {
	for err != nil {
		if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 1 {
			return true
		} else if ok {
			err = joined.Unwrap()[0]
			continue
		}
		err = errors.Unwrap(err)
	}
	return false
}

// ignoreBrokenPipe makes writes to a closed pipe fail. Otherwise SIGPIPE would end this process with its labs left up.
func ignoreBrokenPipe() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

type settings struct {
	portable.Settings
	noColor bool
	// shown is the display of this process. The log is written through it if both are on the same terminal.
	shown atomic.Pointer[display.Display]
}

// Write writes to standard error.
func (s *settings) Write(text []byte) (int, error) {
	if d := s.shown.Load(); d != nil && d.Live && term.IsTerminal(int(os.Stderr.Fd())) {
		return d.Write(text)
	}
	return os.Stderr.Write(text)
}

func (s *settings) display(l display.Look) *display.Display {
	out := io.Writer(os.Stdout)
	if s.Quiet {
		out = io.Discard
	}
	l.Live = display.IsTerminal(out)
	l.Color = l.Live && !s.noColor
	d := display.New(out, l)
	s.shown.Store(d)
	return d
}

// notes is the writer for messages that are not results.
func (s *settings) notes() io.Writer {
	if s.Quiet {
		return io.Discard
	}
	return plain.Writer(os.Stderr)
}

func command() *cobra.Command {
	var s settings
	root := portable.Root(&s.Settings, "Reproduce documented Kubernetes network incidents, and prove that they are detected and remedied",
		`relapse builds clusters with BGP routers, makes documented incidents happen on
them with the vendors' own code, and asserts that each is detected and that
each remedy works.

Exit status: 0 all verdicts as expected, GO, or done; 1 a verdict not as expected,
NO-GO, or both ends of a bisection are alike; 2 bad usage or bad input; 3 this machine
cannot run it (see relapse doctor); 4 inconclusive, UNKNOWN, or a bisection knows only a
range; 5 an audit found what is latent alone; 6 the command itself failed; 130
interrupted, after the lab was taken down.`)
	root.PersistentFlags().BoolVar(&s.noColor, "no-color", os.Getenv("NO_COLOR") != "",
		"print no colours; NO_COLOR in the environment does the same")
	root.AddCommand(
		runCommand(&s),
		listCommand(),
		describeCommand(),
		portable.Page(),
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
		portable.Audit(&s.Settings),
		versionCommand(),
	)
	root.AddCommand(distCommands()...)
	return root
}

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

// judgedAs returns the error of a command that ends with a verdict. broken is why parts could not be judged, if any.
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

// ofDocker gives the error of an unreachable Docker engine the exit status of an unsuitable machine.
func ofDocker(err error) error {
	if client.IsErrConnectionFailed(err) {
		return status.Machine("%w", err)
	}
	return err
}

// remains returns an error that names the labs that this process has left. The labs in before are not its own.
func remains(before []string) error {
	labs, err := kindlab.OwnWithState()
	labs = slices.DeleteFunc(labs, func(lab string) bool { return slices.Contains(before, lab) })
	if names := strings.Join(labs, " "); names != "" {
		err = errors.Join(err, fmt.Errorf("left on this machine: parts of %s; remove them: relapse down %[1]s", names))
	}
	return err
}

// oneSignal is the time in which a second signal counts as the first: timeout and make signal a process and its group.
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
