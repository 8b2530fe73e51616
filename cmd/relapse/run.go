package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/docker/go-units"
	"github.com/moby/moby/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/cmd/relapse/display"
	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/status"
)

type runOptions struct {
	selection
	set      map[string]string // parameters of scenarios
	expect   string            // the verdict that they must get
	subnets  subnets
	family   family
	like     like
	keep     report.Keep
	parallel int // labs of a scenario at the same time; 0: as many as the machine has room for
	on       on
	flags    *pflag.FlagSet // all flags of run
}

func runCommand(s *settings) *cobra.Command {
	var (
		options suite.Options
		ablate  string
		from    origin
		how     = runOptions{keep: report.Keep{Bytes: keepBytes}}
	)
	cmd := &cobra.Command{
		Use:   "run NAME... | --all | --label EXPRESSION",
		Short: "Run scenarios, each on its own lab, and judge them",
		Long: `Run builds the images that the scenarios need, and runs the scenarios one after another:
it brings up a lab (two, for variants side by side, if the machine has room: --parallel),
makes the incident happen with every variant, and takes the lab down.

Each run has its own folder, OUTPUT/NAME/<time>, with report.html, report.json,
junit.xml and evidence/; OUTPUT/NAME/latest links to the newest. The oldest runs of a
scenario are removed when there are more than --keep-runs, or when they take more than
1 GB.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			options.Ablate = verdict.Part(ablate)
			var err error
			if options.Upstreams, err = from.upstreams(); err != nil {
				return err
			}
			how.names, how.flags = args, cmd.Flags()
			return runScenarios(cmd.Context(), s, how, options)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&how.all, "all", false, "run every scenario")
	flags.StringVar(&how.label, "label", "",
		"run the variants with these labels, of the named scenarios or of all, `EXPRESSION` as in 'cilium && !slow' (list shows the labels)")
	flags.StringSliceVar(&options.Variants, "variant", nil, "run only these variants")
	flags.BoolVar(&options.Keep, "keep", false, "restore the lab and leave it running, for --reuse")
	flags.BoolVar(&options.Reuse, "reuse", false, "use the lab that an earlier run kept, if there is one")
	flags.StringVar(&how.on.lab, "on", "", "run on a lab that is up, and leave it as it was: "+
		"what containerlab has deployed from this folder, or the cluster of kind of this kubeconfig, `DIR|FILE`")
	flags.StringVar(&how.on.routers, "routers", "",
		"with --on: how its routers are read, a `FILE` as for audit (default DIR/routers.yml)")
	flags.BoolVar(&how.on.isLab, "yes-this-is-a-lab", false, "with --on: it is a lab, though its cluster has no label that says so")
	flags.StringVar(&ablate, "ablate", "",
		"switch off a part, which must change the verdict: "+
			each.Joined(verdict.Parts, ", ", func(p verdict.Part) string { return string(p) })+" (one after another, on one lab)")
	from.register(flags)
	flags.IntVar(&options.Repeat, "repeat", 1, "run each variant this many times, without remedies, and count its verdicts")
	flags.DurationVar(&options.Wait, "wait", 0, "before the remedies, wait this long, to show that the incident does not recover by itself")
	flags.StringToStringVar(&how.set, "set", nil, "set parameters of a scenario, `NAME=VALUE` (describe lists them)")
	flags.StringToStringVar(&how.with, "with", nil, "run the script on a version that no variant has, "+
		"and report the verdict, `COMPONENT=VERSION`; for an upgrade: cilium.from, cilium.to")
	flags.StringVar(&how.expect, "expect", "", "with --with: the verdict that the version must get, prevented, reproduced or refused, "+
		"else the status is 1, `VERDICT`")
	how.subnets.register(cmd)
	how.family.register(cmd)
	how.like.register(cmd, "as --with, the versions, and as --family, the address families,")
	flags.StringVar(&options.Output, "output", "reports", "folder for the reports")
	flags.IntVar(&how.keep.Runs, "keep-runs", 10, "how many runs of each scenario to keep, including this one")
	flags.DurationVar(&options.Timeout, "timeout", 0, "limit for the whole run (default one hour for each scenario)")
	flags.IntVar(&how.parallel, "parallel", 0, "1: all variants of a scenario on one lab; "+
		"2: on two labs, side by side, where the scenario has a second lab; a lab with guests counts once for each guest; "+
		"by default one for every CPU and 4 GiB of memory")
	flags.BoolVar(&options.DryRun, "dry-run", false, "print every step that would run, and run none")
	return cmd
}

// keepBytes bounds the disk space of a scenario's runs. Their number does not: one with --repeat has evidence of many.
const keepBytes = 1e9

type prepared struct {
	set    *settings
	chosen []framework.Scenario
	how    runOptions
	suite  suite.Options
}

func runScenarios(ctx context.Context, s *settings, how runOptions, o suite.Options) error {
	if how.label != "" && len(o.Variants) > 0 {
		return usagef("--label and --variant exclude each other")
	}
	chosen, labelled, err := how.scenarios()
	if err != nil {
		return err
	}
	if err := how.subnets.move(chosen); err != nil {
		return err
	}
	if how.like != "" && len(chosen) != 1 {
		return usagef("--like: expected one scenario, and not %d", len(chosen))
	}
	if how.like != "" {
		if how.with, how.family, err = how.like.choose(chosen[0], how.with, how.family, s.notes()); err != nil {
			return err
		}
		if len(how.with) == 0 {
			return usagef("--like: the bundle does not state the version of a component that %s tests", chosen[0].Incident.Name)
		}
	}
	r := prepared{set: s, chosen: chosen, how: how, suite: o}
	if err := r.check(labelled); err != nil {
		return err
	}
	if r.suite.Log, err = s.Logger(s); err != nil {
		return err
	}
	if !o.DryRun {
		if err := r.checkOutput(); err != nil {
			return err
		}
		if err := prepare(ctx, chosen, &r.suite); err != nil {
			return err
		}
		defer r.suite.Docker.Close()
		if err := how.on.open(ctx, chosen, &r.suite); err != nil {
			return err
		}
		if o.Reuse {
			for _, s := range r.chosen {
				// It is checked before the run, because a failed run takes the lab down.
				if err := kindlab.CheckKept(ctx, r.suite.Docker, s.Topology); err != nil {
					return usagef("--reuse: %w", err)
				}
			}
		}
	}
	ignoreBrokenPipe()
	return r.run(ctx)
}

// check refuses wrong flags, and applies flags that change the scenarios. labelled are the variants that --label chose.
func (r *prepared) check(labelled []string) error {
	var err error
	if r.how.set, err = r.how.family.into(r.how.set, r.chosen...); err != nil {
		return err
	}
	if err := setParameters(r.chosen, r.how.set); err != nil {
		return err
	}
	if len(r.how.with) > 0 {
		if len(r.suite.Variants) > 0 || r.suite.Ablate != "" || r.suite.Repeat > 1 || r.suite.Wait > 0 {
			return usagef("--with and --like exclude --variant, --ablate, --repeat and --wait: such a version has no expected verdict")
		}
		if err := chooseVersions(r.chosen, r.how.with, r.suite.Upstreams); err != nil {
			return err
		}
		for _, s := range r.chosen {
			s.Variants[0].Expect = framework.Verdict(r.how.expect)
		}
	}
	expectable := []string{string(framework.Prevented), string(framework.Reproduced), string(framework.Refused)}
	switch {
	case r.how.expect != "" && len(r.how.with) == 0:
		return usagef("--expect is for --with: each variant has an expected verdict of its own")
	case r.how.expect != "" && !slices.Contains(expectable, r.how.expect):
		return usagef("--expect: %q%s: expected %s", r.how.expect, topology.Nearest(r.how.expect, expectable), strings.Join(expectable, ", "))
	}
	if err := checkVariants(r.chosen, r.suite.Variants); err != nil {
		return err
	}
	if err := checkRunnable(r.chosen, r.suite.Options); err != nil {
		return err
	}
	if len(r.how.with) == 0 { // --with leads to one variant, without labels
		r.suite.Variants = append(r.suite.Variants, labelled...)
	}
	if err := r.how.on.check(r); err != nil {
		return err
	}
	if err := r.checkNumbers(); err != nil {
		return err
	}
	if r.how.parallel == 0 {
		r.how.parallel = suite.AtOnce(runtime.NumCPU(), host.MemoryGiB())
	}
	if !r.how.flags.Changed("timeout") {
		r.suite.Timeout = time.Hour * time.Duration(len(r.chosen))
	}
	return nil
}

func (r *prepared) checkNumbers() error {
	o := r.suite
	switch {
	case r.how.parallel < 0:
		return usagef("--parallel: %d: expected 0 or more", r.how.parallel)
	case o.Timeout < 0 || o.Timeout == 0 && r.how.flags.Changed("timeout"):
		return usagef("--timeout: %s: expected more than 0", o.Timeout)
	case r.how.keep.Runs < 1:
		return usagef("--keep-runs: %d: expected 1 or more: this run is always kept", r.how.keep.Runs)
	case o.Ablate != "" && !slices.Contains(verdict.Parts, o.Ablate):
		return usagef("--ablate: no part %q%s", o.Ablate, topology.Nearest(o.Ablate, verdict.Parts))
	case o.Repeat < 1:
		return usagef("--repeat: %d: expected 1 or more", o.Repeat)
	case o.Repeat > 1 && o.Ablate != "":
		return usagef("--repeat and --ablate exclude each other: one counts how often each verdict occurs, the other expects it to change")
	case o.Wait < 0 || o.Wait > 0 && o.Repeat > 1:
		return usagef("--wait: %s: expected 0 or more, and no --repeat, which leaves remedies out", o.Wait)
	}
	return nil
}

// checkOutput fails before the run if the report cannot be written.
func (r *prepared) checkOutput() error {
	for _, s := range r.chosen {
		switch err := report.CheckOutput(r.suite.Output, s.Incident.Name); {
		case errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("--output: %w", err)
		case err != nil:
			return usagef("--output: %w", err)
		}
	}
	return nil
}

func (r *prepared) run(ctx context.Context) error {
	o := r.suite
	o.Parameters, o.Versions, o.Labs = r.how.set, r.how.with, r.how.parallel
	look := display.Look{Log: o.Log, Several: len(r.chosen) > 1, Planned: o.DryRun}
	if o.DryRun { // it prints steps, and no report
		steps := display.New(os.Stdout, look)
		defer steps.Close()
		o.Progress = steps
		_, err := suite.Run(ctx, r.chosen, o)
		return err
	}
	shown := r.set.display(look)
	defer shown.Close()
	o.Progress = shown
	o.Command = func(s framework.Scenario) string { return commandOf(s, r.how.flags) }
	defer context.AfterFunc(ctx, func() { o.Progress.Note("run", "interrupted: changes are undone, and the lab goes down") })()
	before, err := kindlab.WithState()
	if err != nil {
		return err
	}
	began := time.Now()
	reports, err := suite.Run(ctx, r.chosen, o)
	shown.Close()
	for _, one := range reports {
		r.finish(one)
	}
	if !r.set.Quiet {
		fmt.Printf("\nscenarios: %d in %s%s\n", len(reports), time.Since(began).Round(time.Second), notPassed(reports))
	}
	if ctx.Err() == nil && !o.Keep && !o.Reuse { // an interrupted command names the remaining labs at its end
		err = errors.Join(err, remains(before))
	}
	return outcome(reports, err)
}

func (r *prepared) finish(one report.Report) {
	printReport(os.Stdout, one, r.suite.Output)
	removed, err := report.PruneRuns(r.suite.Output, one.Scenario, r.how.keep)
	for _, old := range removed {
		if !r.set.Quiet {
			fmt.Printf("  removed old run %s (%s)\n", old.Dir, units.HumanSize(float64(old.Bytes)))
		}
	}
	if err != nil {
		r.suite.Log.Warn("not all old runs could be removed", "error", err) // the verdict is not affected
	}
}

var repeatedFlags = []string{
	"variant", "label", "set", "family", "ablate", "repeat", "wait", "with", "expect", "subnets", "images", "upstream",
	"on", "routers", "yes-this-is-a-lab",
}

// commandOf is the command that repeats a scenario's run, with the flags that affect its verdict: only the variants,
// parameters, versions and subnets of this scenario.
func commandOf(s framework.Scenario, flags *pflag.FlagSet) string {
	words := []string{"relapse", "run", s.Incident.Name}
	flags.Visit(func(f *pflag.Flag) {
		if !slices.Contains(repeatedFlags, f.Name) {
			return
		}
		for _, value := range valuesFor(s, flags, f) {
			words = append(words, "--"+f.Name+"="+value)
		}
	})
	return shellescape.QuoteCommand(words)
}

func valuesFor(s framework.Scenario, flags *pflag.FlagSet, f *pflag.Flag) (values []string) {
	pairs, _ := flags.GetStringToString(f.Name) // nil for a flag of another type
	own := s.Own(pairs)
	concerns := func(string) bool { return true }
	switch f.Name {
	case "variant":
		wanted, _ := flags.GetStringSlice(f.Name)
		for _, v := range s.Variants {
			if slices.Contains(wanted, v.Name) {
				values = append(values, v.Name)
			}
		}
		return values
	case "subnets": // the scenario's part of the prefix
		if part, moved := s.MovedInto(); moved {
			return []string{part.String()}
		}
		return nil
	case "set":
		concerns = func(name string) bool { _, there := own[name]; return there }
	case "with":
		concerns = func(name string) bool { _, there := s.Find(name); return there }
	case "upstream":
	default:
		return []string{f.Value.String()}
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if concerns(name) {
			values = append(values, name+"="+pairs[name])
		}
	}
	return values
}

// prepare finds what the scenarios, or other labs, need on this machine.
func prepare(ctx context.Context, chosen []framework.Scenario, o *suite.Options, labs ...topology.Topology) error {
	catalogue, err := catalogueOf(chosen, o.Upstreams)
	if err != nil {
		return err
	}
	report := host.Inspect(ctx, needs(catalogue, append(labs, each.Of(chosen, topologyOf)...)...))
	if err := report.Err(); err != nil {
		return err
	}
	o.Machine, o.Images = report.Facts, catalogue
	if o.Relapse, err = portable.ThisProgram(); err != nil {
		return err
	}
	o.Docker, err = client.New(client.FromEnv)
	if err != nil {
		return fmt.Errorf("connecting to Docker: %w", err)
	}
	return nil
}

// outcome returns the error of several runs: a failed run outweighs a run that could not be judged.
func outcome(reports []report.Report, broken error) error {
	verdict := framework.Pass
	for _, r := range reports {
		verdict = framework.Worst(verdict, framework.RunVerdict(r.Verdict))
	}
	return judgedAs(verdict, broken)
}

func notPassed(reports []report.Report) string {
	var names []string
	for _, r := range reports {
		if v := framework.RunVerdict(r.Verdict); v != framework.Pass && v != framework.Observed {
			names = append(names, fmt.Sprintf("%s (%s)", r.Scenario, r.Verdict))
		}
	}
	if len(reports) < 2 || len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; %d did not pass: %s", len(names), strings.Join(names, ", "))
}

func nameOf(s framework.Scenario) string { return s.Incident.Name }

func scenarioNames() []string { return each.Of(scenarios.All, nameOf) }

func variantNames(s framework.Scenario) []string {
	return each.Of(s.Variants, func(v framework.Variant) string { return v.Name })
}

func topologyOf(s framework.Scenario) topology.Topology { return s.Topology }

func scenarioNamed(name string) (framework.Scenario, error) {
	if s, there := each.First(scenarios.All, func(s framework.Scenario) bool { return s.Incident.Name == name }); there {
		return s, nil
	}
	return framework.Scenario{}, usagef("no scenario %q%s", name, topology.Nearest(name, scenarioNames()))
}

func setParameters(chosen []framework.Scenario, set map[string]string) error {
	var names []string
	for i, s := range chosen {
		for _, p := range s.Parameters {
			names = append(names, p.Name)
		}
		var err error
		if chosen[i], err = withParameters(s, set); err != nil {
			return err
		}
	}
	for name := range set {
		if !slices.Contains(names, name) {
			return usagef("--set: no parameter %q%s", name, topology.Nearest(name, names))
		}
	}
	return nil
}

func withParameters(s framework.Scenario, set map[string]string) (framework.Scenario, error) {
	own := s.Own(set)
	if len(own) == 0 {
		return s, nil
	}
	s, err := s.Set(own)
	if err != nil {
		return s, usagef("--set: %w", err)
	}
	return s, nil
}

// checkVariants refuses variants that no scenario has, and a choice that leaves a scenario with none: it would pass.
func checkVariants(chosen []framework.Scenario, wanted []string) error {
	if len(wanted) == 0 {
		return nil
	}
	var errs, empty []error
	var all []string
	for _, s := range chosen {
		names := variantNames(s)
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
	if len(errs) == 0 { // a misspelt name is reported already
		errs = empty
	}
	return errors.Join(errs...)
}

// checkRunnable refuses chosen variants that cannot run, and a dual-stack lab on which no variant can run. A version
// that cannot run there is no bad usage.
func checkRunnable(chosen []framework.Scenario, o engine.Options) error {
	var errs []error
	for _, s := range chosen {
		if s.Topology.Dual {
			errs = append(errs, host.PassesIPv6())
		}
		none := len(s.Runnable()) == 0
		for _, v := range s.Variants {
			runnable, why := v.Runnable()
			if !runnable && (slices.Contains(o.Variants, v.Name) || none && len(o.Variants) == 0) {
				errs = append(errs, status.Machine("variant %q runs %s", v.Name, why))
			}
		}
	}
	return errors.Join(errs...)
}

// debianPackages build the root file systems of images. gpgv checks the signature of the Debian archive.
var debianPackages = []string{"debian-archive-keyring", "debootstrap", "gpgv"}

func needs(c *images.Catalogue, labs ...topology.Topology) host.Needs {
	subnets := map[netip.Prefix]string{}
	for _, t := range labs {
		for _, n := range t.Networks {
			subnets[n.Subnet] = n.Name + " of " + t.Name
			if n.Fixed != "" {
				subnets[n.Subnet] += ", which cannot move: " + n.Fixed
			}
		}
	}
	return host.Needs{Packages: debianPackages, ImageCache: c.CacheDir(), Subnets: subnets}
}
