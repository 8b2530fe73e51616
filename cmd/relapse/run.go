package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/docker/docker/client"
	"github.com/docker/go-units"
	"github.com/onsi/ginkgo/v2/formatter"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/metrics"
	"github.com/relapse-dev/relapse/framework/report/trace"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// runOptions are the flags of run that are not the suite's.
type runOptions struct {
	all      bool              // scenarios of the catalogue
	label    string            // an expression of labels
	set      map[string]string // parameters of scenarios
	with     map[string]string // versions of components that no variant names
	keep     report.Keep
	recorded bool           // add to the rates on record
	parallel int            // scenarios side by side
	progress int            // an open file to which is told what the run does; 0 for none
	flags    *pflag.FlagSet // all of run's, as they were given
}

func runCommand(s *settings) *cobra.Command {
	var (
		options suite.Options
		ablate  string
		source  string
		mirrors map[string]string
		how     = runOptions{keep: report.Keep{Bytes: keepBytes}}
	)
	cmd := &cobra.Command{
		Use:   "run NAME... | --all | --label EXPRESSION",
		Short: "Run scenarios, each on a lab of its own, and judge them",
		Long: `Run builds what the scenarios need, brings up a lab for each, makes the
incident happen with every variant, and takes the lab down again.

Each run has a folder of its own, OUTPUT/NAME/<time>, with report.html,
report.json, junit.xml and evidence/; OUTPUT/NAME/latest leads to the newest. The oldest
are removed when there are more than --keep-runs, or when a scenario's take
more than 1 GB together. OUTPUT/metrics.prom has the metrics of the newest runs, for
Prometheus. Where OTEL_EXPORTER_OTLP_ENDPOINT is set, spans of the run go there, by
OTLP over HTTP.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			options.Ablate = engine.Part(ablate)
			var err error
			if options.Upstreams, err = upstreams(source, mirrors); err != nil {
				return err
			}
			how.flags = cmd.Flags()
			return runScenarios(cmd.Context(), s, args, how, options)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&how.all, "all", false, "run every scenario")
	flags.StringVar(&how.label, "label", "", "run of these scenarios, or of all, the variants with these labels, `EXPRESSION` as in 'cilium && !slow' (list shows them)")
	flags.StringSliceVar(&options.Variants, "variant", nil, "run these variants only")
	flags.BoolVar(&options.Keep, "keep", false, "leave the lab running, put back, for --reuse")
	flags.BoolVar(&options.Reuse, "reuse", false, "use the lab that an earlier run has kept, if it is there")
	flags.StringVar(&ablate, "ablate", "", "switch a part off, and see the verdict change: "+partNames()+" (one after the other, on one lab)")
	flags.StringVar(&source, "images", imagesBuild, "where the vendors' images come from: build, or upstream, their own registries")
	flags.StringToStringVar(&mirrors, "upstream", nil, "with --images=upstream: another registry for a vendor's host, `HOST=URL`")
	flags.IntVar(&options.Repeat, "repeat", 1, "run each variant so many times, without remedies, and tell how often its verdict came")
	flags.DurationVar(&options.Wait, "wait", 0, "before the remedies, leave the incident alone so long, and see that it does not heal by itself")
	flags.BoolVar(&how.recorded, "record", false, "with --repeat: add what became of affected variants to the rates on record, for an incident that strikes by chance")
	flags.StringToStringVar(&how.set, "set", nil, "set parameters of a scenario, `NAME=VALUE` (describe lists them)")
	flags.StringToStringVar(&how.with, "with", nil, "run the script on a version that no variant has, and say what is seen, `COMPONENT=VERSION`; where there are two: cilium.from, cilium.to")
	flags.StringVar(&options.Output, "output", "reports", "folder for the reports")
	flags.IntVar(&how.keep.Runs, "keep-runs", 10, "how many runs of each scenario to keep, this one among them")
	flags.DurationVar(&options.Timeout, "timeout", time.Hour, "bound on the whole run; on that of each scenario, where they run side by side")
	flags.IntVar(&how.parallel, "parallel", 0, "how many labs to run side by side at most, where one with guests counts once for each guest; without it, one for every CPU and 4 GiB of memory")
	flags.IntVar(&how.progress, progressFlag, 0, "")
	if err := flags.MarkHidden(progressFlag); err != nil {
		panic(err) // it is there
	}
	flags.BoolVar(&options.DryRun, "dry-run", false, "print every step that would run, and run none")
	return cmd
}

// keepBytes bounds what the runs of one scenario take on disk. The number of
// runs alone does not: one run with --repeat holds the evidence of many.
const keepBytes = 1e9

// Where the vendors' images come from.
const (
	imagesBuild    = "build"
	imagesUpstream = "upstream"
)

// upstreams are the registries that the vendors' images come from; none if
// they are built.
func upstreams(source string, mirrors map[string]string) (registry.Upstreams, error) {
	switch source {
	case imagesBuild:
		if len(mirrors) > 0 {
			return nil, usagef("--upstream is for --images=upstream")
		}
		return nil, nil
	case imagesUpstream:
		from, err := registry.NewUpstreams(mirrors)
		if err != nil {
			return nil, usagef("--upstream: %w", err)
		}
		return from, nil
	}
	return nil, usagef("--images: %q is none of %s, %s", source, imagesBuild, imagesUpstream)
}

func partNames() string {
	var names []string
	for _, p := range engine.Parts {
		names = append(names, string(p))
	}
	return strings.Join(names, ", ")
}

func runScenarios(ctx context.Context, s *settings, names []string, how runOptions, o suite.Options) error {
	if how.label != "" && len(o.Variants) > 0 {
		return usagef("--label and --variant exclude each other")
	}
	chosen, labelled, err := selection{names, how.all, how.label, how.with}.scenarios(o.Upstreams)
	if err != nil {
		return err
	}
	if err := setParameters(chosen, how.set); err != nil {
		return err
	}
	if len(how.with) > 0 {
		if len(o.Variants) > 0 || o.Ablate != "" || o.Repeat > 1 || o.Wait > 0 {
			return usagef("--with excludes --variant, --ablate, --repeat and --wait: nothing is expected of such a version")
		}
		if err := chooseVersions(chosen, how.with, o.Upstreams); err != nil {
			return err
		}
	}
	if err := checkVariants(chosen, o.Variants); err != nil {
		return err
	}
	if err := checkRunnable(chosen, o.Options); err != nil {
		return err
	}
	if len(how.with) == 0 { // with it there is one variant, which the catalogue has not
		o.Variants = append(o.Variants, labelled...)
	}
	if how.parallel < 0 {
		return usagef("--parallel: %d is no number of scenarios", how.parallel)
	}
	if how.parallel == 0 {
		how.parallel = atOnce()
	}
	if o.Timeout <= 0 {
		return usagef("--timeout: %s is no time to run in", o.Timeout)
	}
	if how.keep.Runs < 1 {
		return usagef("--keep-runs: %d: this run stays in any case", how.keep.Runs)
	}
	if o.Ablate != "" && !slices.Contains(engine.Parts, o.Ablate) {
		return usagef("--ablate: no part %q%s", o.Ablate, topology.Nearest(string(o.Ablate), strings.Split(partNames(), ", ")))
	}
	if o.Repeat < 1 {
		return usagef("--repeat: %d is no number of runs", o.Repeat)
	}
	if o.Repeat > 1 && o.Ablate != "" {
		return usagef("--repeat and --ablate exclude each other: the one counts how often a verdict comes, the other wants it to change")
	}
	if o.Wait < 0 || o.Wait > 0 && o.Repeat > 1 {
		return usagef("--wait: it takes a time, and no --repeat, which leaves remedies out")
	}
	if how.recorded {
		if err := checkRecord(chosen, o.Repeat); err != nil {
			return err
		}
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	if !o.DryRun {
		// Better now than after a run whose report has nowhere to go.
		for _, s := range chosen {
			switch err := report.CheckOutput(o.Output, s.Incident.Name); {
			case errors.Is(err, syscall.ENOSPC):
				return fmt.Errorf("--output: %w", err)
			case err != nil:
				return usagef("--output: %w", err)
			}
		}
		if err := prepare(ctx, chosen, &o); err != nil {
			return err
		}
		defer o.Docker.Close()
	}
	// Whoever reads the output may go away, or be killed: a write then fails, where
	// the signal would end this process before it has taken its labs down.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if how.parallel > 1 && len(chosen) > 1 {
		var common *display
		if !o.DryRun && s.drawsOn(os.Stdout) {
			s.earlier, s.several = earlierIn(o.Output, o.Machine), true
			common = s.progress(os.Stdout, log)
			defer common.Close()
		}
		recorded, err := figures.Recorded()
		if err != nil {
			return err
		}
		return sideBySide(ctx, s, longestFirst(chosen, recorded), how.flags, how.parallel, common, os.Stdout, os.Stderr)
	}
	o.Parameters, o.Versions = how.set, how.with
	s.earlier = earlierIn(o.Output, o.Machine)
	display := newDisplay(os.Stdout, look{}) // of a dry run the steps are what it comes to
	if !o.DryRun && how.progress == 0 {
		display = s.progress(os.Stdout, log)
	}
	defer display.Close()
	o.Progress, o.Log = display, log
	if how.progress > 0 {
		o.Progress = senderTo(how.progress)
	}
	o.Command = func(s framework.Scenario) string { return commandOf(s, how.flags) }
	if ctx.Err() != nil { // from here on Ginkgo handles signals as well
		return engine.ErrInterrupted
	}
	defer context.AfterFunc(ctx, func() { o.Progress.Note("run", "interrupted: what was done is undone, and the lab goes down") })()
	// Ginkgo's own account of the run goes to the report; people get ours.
	formatter.ColorableStdOut = io.Discard
	began := time.Now()
	reports, err := suite.Run(ignoreFail{}, chosen, o)
	display.Close()
	if o.DryRun {
		return err
	}
	for _, r := range reports {
		printReport(os.Stdout, r, o.Output)
		if i := slices.IndexFunc(chosen, func(s framework.Scenario) bool { return s.Incident.Name == r.Scenario }); how.recorded {
			runs, err := record(chosen[i], r)
			if err != nil {
				return err
			}
			fmt.Printf("  %d runs are on record in %s\n", runs, raceOf(chosen[i]).File)
		}
		removed := io.Writer(os.Stdout)
		if s.quiet {
			removed = io.Discard
		}
		if err := pruneRuns(removed, o.Output, r.Scenario, how.keep); err != nil {
			log.Warn("not all old runs could be removed", "error", err) // the verdict stands
		}
	}
	if !s.quiet {
		fmt.Printf("\nscenarios: %d in %s\n", len(reports), time.Since(began).Round(time.Second))
	}
	if !errors.Is(err, syscall.ENOSPC) { // metrics would have no room either, and that is said once
		tellOthers(ctx, log, o.Output, reports)
	}
	return outcome(reports, err)
}

// tellWithin bounds how long an endpoint may take that is told of a run.
const tellWithin = 15 * time.Second

// tellOthers leaves metrics, and sends spans where the environment names an endpoint.
// That this fails changes no verdict.
func tellOthers(ctx context.Context, log *slog.Logger, output string, reports []report.Report) {
	if err := metrics.Update(output); err != nil {
		log.Warn("the metrics could not be written", "error", err)
	}
	if !trace.Wanted() || len(reports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellWithin)
	defer cancel()
	if err := trace.Export(ctx, reports...); err != nil {
		log.Warn("the spans of the run could not be sent", "error", err)
	}
}

// commandOf is the command that runs a scenario again as these flags had it run, but
// for those that change nothing of what it comes to.
func commandOf(s framework.Scenario, flags *pflag.FlagSet) string {
	words := []string{"relapse", "run", s.Incident.Name}
	for _, arg := range childArgs(s, flags) {
		name, _, _ := strings.Cut(arg, "=")
		if slices.Contains([]string{"--variant", "--label", "--set", "--ablate", "--repeat", "--wait", "--with", "--images", "--upstream"}, name) {
			words = append(words, arg)
		}
	}
	return shellescape.QuoteCommand(words)
}

// pruneRuns removes old runs of a scenario, and tells which.
func pruneRuns(out io.Writer, output, scenario string, keep report.Keep) error {
	removed, err := report.PruneRuns(output, scenario, keep)
	for _, r := range removed {
		fmt.Fprintf(out, "  removed the old run %s (%s)\n", r.Dir, units.HumanSize(float64(r.Bytes)))
	}
	return err
}

// prepare finds what a run of these scenarios needs on this machine.
func prepare(ctx context.Context, chosen []framework.Scenario, o *suite.Options) error {
	catalogue, err := catalogueOf(chosen, o.Upstreams)
	if err != nil {
		return err
	}
	report := host.Inspect(ctx, needs(catalogue))
	if err := report.Err(); err != nil {
		return err
	}
	o.Machine, o.Images = report.Facts, catalogue
	if o.Relapse, err = thisProgram(); err != nil {
		return err
	}
	o.Docker, err = client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return fmt.Errorf("connecting to Docker: %w", err)
	}
	return nil
}

// ignoreFail is the testing.T that Ginkgo tells of a failed suite. It does
// nothing: the exit status comes from the reports.
type ignoreFail struct{}

func (ignoreFail) Fail() {}

// outcome is what the runs together came to: a failure outweighs what could
// not be judged.
func outcome(reports []report.Report, broken error) error {
	verdict := framework.Pass
	if broken != nil {
		verdict = framework.Inconclusive
	}
	for _, r := range reports {
		verdict = framework.Worst(verdict, framework.RunVerdict(r.Verdict))
	}
	if verdict == framework.Pass {
		return nil
	}
	return &verdictError{verdict, broken}
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios.All {
		names = append(names, s.Incident.Name)
	}
	return names
}

func scenarioNamed(name string) (framework.Scenario, error) {
	for _, s := range scenarios.All {
		if s.Incident.Name == name {
			return s, nil
		}
	}
	return framework.Scenario{}, usagef("no scenario %q%s", name, topology.Nearest(name, scenarioNames()))
}

// setParameters gives each scenario the values of those parameters that it has.
func setParameters(chosen []framework.Scenario, set map[string]string) error {
	var known []string
	for i, s := range chosen {
		values := map[string]string{}
		for _, p := range s.Parameters {
			known = append(known, p.Name)
			if value, given := set[p.Name]; given {
				values[p.Name] = value
			}
		}
		if len(values) == 0 {
			continue
		}
		var err error
		if chosen[i], err = s.With(values); err != nil {
			return usagef("--set: %w", err)
		}
	}
	for name := range set {
		if !slices.Contains(known, name) {
			return usagef("--set: no parameter %q%s", name, topology.Nearest(name, known))
		}
	}
	return nil
}

// checkVariants refuses a choice of variants that is not in any of the
// scenarios, or that leaves one of them without any: a scenario that runs
// nothing proves nothing, and would look like a pass.
func checkVariants(chosen []framework.Scenario, wanted []string) error {
	if len(wanted) == 0 {
		return nil
	}
	var errs, empty []error
	var all []string
	for _, s := range chosen {
		var names []string
		for _, v := range s.Variants {
			names = append(names, v.Name)
		}
		all = append(all, names...)
		if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(wanted, name) }) {
			empty = append(empty, usagef("scenario %q has none of the variants asked for; there are %q", s.Incident.Name, names))
		}
	}
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			errs = append(errs, usagef("no variant %q%s", name, topology.Nearest(name, all)))
		}
	}
	if len(errs) == 0 { // a misspelt name has been reported already
		errs = empty
	}
	return errors.Join(errs...)
}

// checkRunnable refuses variants that were asked for by name and cannot run.
func checkRunnable(chosen []framework.Scenario, o engine.Options) error {
	var errs []error
	for _, s := range chosen {
		for _, v := range s.Variants {
			runnable, why := v.Runnable(o.Upstreams)
			if slices.Contains(o.Variants, v.Name) && !runnable {
				errs = append(errs, usagef("variant %q runs %s", v.Name, why))
			}
		}
	}
	return errors.Join(errs...)
}

// needs is what relapse needs of a machine.
func needs(c *images.Catalogue) host.Needs {
	return host.Needs{Packages: []string{"debootstrap"}, ImageCache: c.CacheDir()}
}
