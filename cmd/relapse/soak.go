package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/soak"
	"github.com/relapse-dev/relapse/framework/suite"
)

// soakOptions are the flags of soak.
type soakOptions struct {
	storedOptions
	lasts       time.Duration // no run begins later; zero: no limit
	runs        int           // at most; zero: no limit
	freshEvery  int           // runs on a lab; zero: all
	variants    []string
	brief       bool
	keepReports bool
}

func (o *soakOptions) check() error {
	switch {
	case o.lasts < 0 || o.lasts == 0 && o.runs == 0:
		return usagef("--for: %s: expected more than 0", o.lasts)
	case o.runs < 0:
		return usagef("--runs: %d: expected 0 or more", o.runs)
	case o.freshEvery < 0:
		return usagef("--fresh-every: %d: expected 0 or more", o.freshEvery)
	}
	return o.storedOptions.check()
}

func soakCommand(s *settings) *cobra.Command {
	var o soakOptions
	cmd := &cobra.Command{
		Use:   "soak NAME",
		Short: "Run a scenario repeatedly, and say what grows",
		Long: `Soak runs a scenario repeatedly, on one lab and then on new ones, and counts after
each run: verdicts; times; open files, goroutines and memory of relapse itself;
containers, processes, links, routes and rules of the lab and of the machine; files of
the report. A quantity grows steadily if, over the last half of the runs, split in five
parts, both its lowest and its highest value rise from each part to the next. To say so
takes 20 runs, and for quantities of the lab 20 runs on one lab.

OUTPUT/soak/NAME/<time> has runs.jsonl, one line per run, written when it ends, and at
the end the result as soak.txt and soak.json (relapse.soak/v1). Reports of runs that
passed are removed, except the newest; --keep-reports keeps them.

No run begins when the time is up. An interrupt takes the lab down and prints the result
so far.

Exit status: 0 all verdicts as expected, and nothing grows; 1 a run did not have the
expected verdicts, something grows, or something was left of a lab; 4 a run could not be
judged, or there were too few runs to say what grows; 2, 3 and 130 as for all commands.`,
		Example: "  relapse soak node-drain --for 2h\n  relapse soak node-drain --variant cilium-1.11.6 --runs 100 --fresh-every 0 --brief",
		Args:    exactArgs(1, "the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.runs != 0 && !cmd.Flags().Changed("for") {
				o.lasts = 0
			}
			return runSoak(cmd.Context(), s, args[0], o)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.lasts, "for", 2*time.Hour, "for how long to begin runs; with --runs alone there is no limit")
	flags.IntVar(&o.runs, "runs", 0, "how many runs at most; 0 for no limit")
	flags.IntVar(&o.freshEvery, "fresh-every", soak.Enough+1, "how many runs share a lab before the next one gets a new lab; 0 for all")
	flags.StringSliceVar(&o.variants, "variant", nil, "run only these variants")
	flags.BoolVar(&o.brief, "brief", false, "leave harmless precursors and remedies out, for more runs in the time")
	flags.BoolVar(&o.keepReports, "keep-reports", false, "keep the reports of runs that passed as well")
	o.register(cmd, "print the steps of a run, and run nothing")
	return cmd
}

// command repeats a soak.
func (o soakOptions) command(scenario string) string {
	words := []string{"relapse", "soak", scenario}
	if o.lasts > 0 {
		words = append(words, "--for", o.lasts.String())
	}
	if o.runs > 0 {
		words = append(words, "--runs", fmt.Sprint(o.runs))
	}
	words = append(words, "--fresh-every", fmt.Sprint(o.freshEvery))
	for _, v := range o.variants {
		words = append(words, "--variant", v)
	}
	if o.brief {
		words = append(words, "--brief")
	}
	return shellescape.QuoteCommand(append(words, o.subnets.words()...))
}

func runSoak(ctx context.Context, s *settings, name string, o soakOptions) error {
	scenario, err := o.subnets.one(name)
	if err != nil {
		return err
	}
	chosen := []framework.Scenario{scenario}
	if err := errors.Join(checkVariants(chosen, o.variants), checkRunnable(chosen, engine.Options{Variants: o.variants})); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.dryRun {
		if _, err := s.logger(); err != nil {
			return err
		}
		o := suite.Options{Options: engine.Options{Variants: o.variants, Brief: o.brief, Progress: display.New(os.Stdout, display.Look{Planned: true})}, DryRun: true}
		_, err := suite.Run(ctx, chosen, o)
		return err
	}
	l, err := s.openLabs(ctx, nil, display.Look{Forgets: true}, scenario.Topology)
	if err != nil {
		return err
	}
	defer l.Close()
	dir, err := o.folder("soak", name)
	if err != nil {
		return err
	}
	// All files in a folder of this process's own are its own.
	temp, err := os.MkdirTemp("", "relapse-soak-")
	if err != nil {
		return fmt.Errorf("making a folder for temporary files: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return err
	}
	l.Variants, l.Brief = o.variants, o.brief
	once := o
	once.lasts, once.runs, once.freshEvery = 0, 1, 0
	l.Command = func(s framework.Scenario) string { return once.command(s.Incident.Name) }
	for _, line := range scenario.Subnets() {
		l.display.Note("soak", line)
	}
	k := soak.Soak{
		Scenario: scenario, For: o.lasts, Runs: o.runs, FreshEvery: o.freshEvery, KeepReports: o.keepReports, Dir: dir, Command: o.command(name),
		Lab: l.kept(dir, o.timeout), Counter: soak.KindLabs{Docker: l.Docker, Name: scenario.Topology.Name, Temp: temp},
		Note: func(text string) { l.display.Note("soak", text) },
	}
	result, err := k.Run(ctx)
	l.display.Close()
	if result.Runs > 0 {
		fmt.Fprintf(plain.Writer(os.Stdout), "\n%s\n  %s, %s and %s: %s\n", strings.TrimSuffix(result.Text(), "\n"), soak.FileText, soak.FileJSON, soak.FileRuns, dir)
	}
	if ctx.Err() != nil {
		return errors.Join(engine.ErrInterrupted, err) // the lab may not be down
	}
	return judgedAs(result.Verdict, err)
}
