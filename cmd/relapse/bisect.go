package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/bisect/versionlab"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

type storedOptions struct {
	output  string
	subnets subnets
	timeout time.Duration // of each run
	dryRun  bool
}

func (o *storedOptions) register(cmd *cobra.Command, dryRun string) {
	flags := cmd.Flags()
	flags.StringVar(&o.output, "output", "reports", "folder for the reports")
	o.subnets.register(cmd)
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "limit for each run")
	flags.BoolVar(&o.dryRun, "dry-run", false, dryRun)
}

func (o *storedOptions) folder(command, name string) (string, error) {
	dir, err := report.NewRun(filepath.Join(o.output, command), name, time.Now())
	if err != nil {
		return "", usagef("--output: %w", err)
	}
	return dir, nil
}

func (o *storedOptions) check() error {
	if o.timeout <= 0 {
		return usagef("--timeout: %s: expected more than 0", o.timeout)
	}
	return nil
}

type bisectOptions struct {
	storedOptions
	versions versionlab.Range
	with     map[string]string // versions of components that are not searched
}

func bisectCommand(s *settings) *cobra.Command {
	var o bisectOptions
	cmd := &cobra.Command{
		Use:   "bisect NAME COMPONENT",
		Short: "Find the version of a component that broke it, or fixed it",
		Long: `Bisect runs a scenario's script on versions of a component, without harmless
precursors and remedies, until it is known with which versions the outcome changes. Each
minor is searched as a branch of its own, because vendors port fixes back.

OUTPUT/bisect/NAME-COMPONENT-<time> has a report of each run, and the results in bisect.json.
cmd/relapse/README.md, "Bisect", says how versions are judged.

Exit status: 0 the version of each change is known; 1 both ends are alike, and those of each
minor; 4 only a range is known, or an end could not be judged; 2, 3, 6 and 130 as for all commands.`,
		Example: "  relapse bisect node-drain cilium --from 1.11.0 --to 1.12.0 --pre",
		Args:    portable.ExactArgs(2, "the names of a scenario and of a component, such as node-drain cilium"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scenario, err := o.subnets.one(args[0], nil)
			if err != nil {
				return err
			}
			tested, there := scenario.Find(args[1])
			if !there {
				names := each.Of(scenario.Tested, func(t framework.Tested) string { return t.Name })
				return usagef("scenario %q tests no component %q%s", args[0], args[1], topology.Nearest(args[1], names))
			}
			return runBisection(cmd.Context(), s, scenario, tested, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.versions.From, "from", "", "the lowest `VERSION`; without it, the lowest that can be built")
	flags.StringVar(&o.versions.To, "to", "", "the highest `VERSION`; without it, the highest that can be built")
	flags.BoolVar(&o.versions.PreReleases, "pre", false, "include pre-releases")
	flags.StringToStringVar(&o.with, "with", nil, "the version of another component of the script, `COMPONENT=VERSION`")
	o.register(cmd, "print the plan, and run nothing")
	return cmd
}

func checkRange(r versionlab.Range) error {
	for _, end := range []struct{ flag, version string }{{"--from", r.From}, {"--to", r.To}} {
		if end.version != "" && semver.Canonical("v"+end.version) != "v"+end.version {
			return usagef("%s: %q is not a version: expected one such as 1.11.0", end.flag, end.version)
		}
	}
	if r.From == "" || r.To == "" {
		return nil
	}
	switch c := bisect.Compare(r.From, r.To); {
	case c == 0:
		return usagef("--from and --to are both %s: there is nothing between them", r.From)
	case c > 0:
		return usagef("--from %s is newer than --to %s: give the older version as --from; "+
			"bisect finds in either case whether the newer one broke or fixed it", r.From, r.To)
	}
	return nil
}

func runBisection(ctx context.Context, s *settings, scenario framework.Scenario, tested framework.Tested, o bisectOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := checkRange(o.versions); err != nil {
		return err
	}
	catalogue, _, err := openCatalogue()
	if err != nil {
		return err
	}
	for name := range o.with {
		if t, there := scenario.Find(name); there && t.Name == tested.Name {
			return usagef("--with %s: bisect searches the versions of this component", name)
		}
	}
	lab := versionlab.Lab{Catalogue: catalogue, Scenario: scenario, Required: []string{o.versions.From, o.versions.To}}
	lab.At = func(version string) (framework.Scenario, error) {
		versions := map[string]string{tested.Name: version}
		maps.Copy(versions, o.with)
		return scenario.Unclassified(versions)
	}
	if _, err := lab.At(tested.Default); err != nil {
		return usagef("--with: %w", err)
	}
	b, err := openBisection(ctx, catalogue, scenario, tested, o, lab.Builds)
	if err != nil {
		return err
	}
	b.WritePlan(plain.Writer(os.Stdout))
	for _, line := range scenario.Subnets() {
		fmt.Fprintf(plain.Writer(os.Stdout), "  %s\n", line)
	}
	if o.dryRun {
		return nil
	}
	l, err := s.openLabs(ctx, catalogue, scenario.Topology)
	if err != nil {
		return err
	}
	defer l.Close()
	if b.Dir, err = o.folder("bisect", scenario.Incident.Name+"-"+tested.Name); err != nil {
		return err
	}
	lab.Lab = l.runsIn(b.Dir, o.timeout)
	err = b.Run(ctx, lab, func(text string) { l.display.Note("bisect", text) })
	err = errors.Join(err, lab.Down())
	l.display.Close()
	if ctx.Err() != nil && !errors.Is(err, engine.ErrInterrupted) {
		err = errors.Join(engine.ErrInterrupted, err) // the lab may not be down
	}
	if err != nil {
		fmt.Fprintf(plain.Writer(os.Stdout), "\nresults so far: %s\n", b.Dir)
		return err
	}
	b.WriteResult(plain.Writer(os.Stdout))
	return judgedAs(b.Verdict(), nil)
}

func openBisection(
	ctx context.Context, c *images.Catalogue, scenario framework.Scenario, tested framework.Tested, o bisectOptions, builds func(string) error,
) (*bisect.Bisection, error) {
	releases, err := c.Releases(ctx, tested.Component())
	if err != nil {
		return nil, err
	}
	versions, unbuildable, err := o.versions.Candidates(releases, builds)
	if errors.Is(err, versionlab.ErrNoneBuilds) {
		return nil, usagef("%s: %w", tested.Component(), err)
	}
	if err != nil {
		return nil, err
	}
	var earlier []string
	if len(versions) > 0 {
		earlier = versionlab.Earlier(releases, versions[0])
	}
	b, err := bisect.Start(scenario.Incident.Name, tested.Name, o.with, versions, unbuildable, earlier...)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return b, nil
}

type openedLabs struct {
	suite.Options
	display *display.Display
}

// openLabs inspects this machine, which is to run these labs, connects to Docker and opens
// the display. Close ends both. A nil catalogue is the one of the source.
func (s *settings) openLabs(ctx context.Context, c *images.Catalogue, labs ...topology.Topology) (*openedLabs, error) {
	log, err := s.Logger(s)
	if err != nil {
		return nil, err
	}
	l := &openedLabs{}
	if err := prepare(ctx, nil, &l.Options, labs...); err != nil {
		return nil, err
	}
	if c != nil {
		l.Images = c
	}
	ignoreBrokenPipe()
	l.display = s.display(display.Look{Log: log})
	l.Log, l.Progress = log, l.display
	return l, nil
}

func (l *openedLabs) Close() {
	l.display.Close()
	l.Docker.Close()
}

func (l *openedLabs) runsIn(output string, timeout time.Duration) *keptlab.Lab {
	o := l.Options
	o.Output = output
	return &keptlab.Lab{Labs: suite.Labs(o), Options: o.Options, Timeout: timeout}
}
