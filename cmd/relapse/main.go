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
	"sync/atomic"
	"syscall"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/plain"
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
	switch {
	case errors.Is(err, engine.ErrInterrupted):
		return err.Error()
	case ctx.Err() == nil && client.IsErrConnectionFailed(err) && several(err):
		// All steps, and taking the lab down, have failed for one reason.
		return "Docker stopped answering: start it (see relapse doctor), and remove what is left of the lab (relapse down)"
	}
	return portable.Complaint(ctx, err)
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
	portable.Settings
	noColor bool
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
	l.Live, l.Color, l.Quiet = terminal, terminal && !s.noColor, s.Quiet
	d := display.New(os.Stdout, l)
	s.shown.Store(d)
	return d
}

// notes is where a command says what it does, beside its results.
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
