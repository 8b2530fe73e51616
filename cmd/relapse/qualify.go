package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
)

// qualifyOptions are the flags of qualify.
type qualifyOptions struct {
	config  string // a file, or - for standard input
	maxGap  time.Duration
	maxLost string // a share of packets, such as 0.1%
	output  string
	resume  string // the folder of an earlier qualification
	timeout time.Duration
	dryRun  bool
}

func qualifyCommand(s *settings) *cobra.Command {
	var o qualifyOptions
	cmd := &cobra.Command{
		Use:   "qualify COMPONENT FROM TO",
		Short: "Say whether a component can be upgraded: configuration, incidents, and traffic meanwhile",
		Long: `Qualify judges an upgrade before it is made: the way through the vendor's releases,
what becomes of your own configuration, every incident of the catalogue that concerns
the component with both versions, and, on a lab and under traffic, the upgrade itself
and the way back. A component is named as relapse list names it.

--config takes a ConfigMap, or a stream of YAML that has it in it, and - is standard
input: helm template ... | relapse qualify cilium 1.11.6 1.12.4 --config -
Both versions' own code is asked what it makes of it. Only Cilium's can be asked.

An incident that an upgrade brings, and no version has by itself, is asked of the
upgrade from FROM to TO; for one version alone it is not there. The others run with
FROM and with TO, without lesser forms and remedies. A version that does not start,
and says why, is not affected.

NO-GO: an incident is introduced, TO does not start with the configuration, or
traffic suffers more than --max-gap and --max-lost allow. UNKNOWN: something that
decides could not be judged. Samples that are missing are unknown, not fine. What is
still there as it was is a warning, and comes first in the table.

OUTPUT/qualify/COMPONENT-FROM-to-TO/<time> has a report of each run, and the table as
text, Markdown, JSON (relapse.qualification/v1) and JUnit. An interrupt takes the lab
down, and --resume goes on with what is in that folder: versions that ran are not run
again, and an upgrade that came to its end is not made again.

Exit status: 0 GO; 1 NO-GO; 4 UNKNOWN; 2, 3 and 130 as for all commands.`,
		Example: `  relapse qualify cilium 1.11.6 1.12.0
  kubectl -n kube-system get configmap cilium-config -o yaml | relapse qualify cilium 1.8.1 1.11.1 --config -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 3 {
				return usagef("relapse qualify takes three arguments, the name of a component and two versions, such as cilium 1.11.6 1.12.0")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runQualification(cmd.Context(), s, cmd.InOrStdin(), args[0], args[1], args[2], o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.config, "config", "", "the component's ConfigMap, or YAML that has it in it, `FILE`; - is standard input")
	flags.DurationVar(&o.maxGap, "max-gap", time.Second, "how long a path may have no answer while versions change")
	flags.StringVar(&o.maxLost, "max-lost", "0.1%", "how many of a path's packets may be lost while versions change, as a `SHARE`; none may be after that")
	flags.StringVar(&o.output, "output", "reports", "folder for the reports")
	flags.StringVar(&o.resume, "resume", "", "go on with what was interrupted, by its folder, `DIR`")
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "bound on each run")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the plan, and run nothing")
	return cmd
}

// thresholds are those of the flags.
func (o qualifyOptions) thresholds() (qualify.Thresholds, error) {
	if o.maxGap < 0 {
		return qualify.Thresholds{}, usagef("--max-gap: %s is no time", o.maxGap)
	}
	number, is := strings.CutSuffix(o.maxLost, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !is || err != nil || !(percent >= 0 && percent <= 100) {
		return qualify.Thresholds{}, usagef("--max-lost: %q is no share of packets: expected one such as 0.1%%", o.maxLost)
	}
	return qualify.Thresholds{MaxGapMS: o.maxGap.Milliseconds(), MaxLost: percent / 100}, nil
}

// command does a qualification again.
func (o qualifyOptions) command(component, from, to string) string {
	words := []string{"relapse", "qualify", component, from, to}
	for _, flag := range [][3]string{
		{"--config", o.config, ""}, {"--max-gap", o.maxGap.String(), "1s"}, {"--max-lost", o.maxLost, "0.1%"}, {"--timeout", o.timeout.String(), "1h0m0s"},
	} {
		if flag[1] != flag[2] {
			words = append(words, flag[0], flag[1])
		}
	}
	return shellescape.QuoteCommand(words)
}

// checkVersions refuses what is no upgrade.
func checkVersions(component, from, to string) error {
	for _, v := range []string{from, to} {
		if semver.Canonical("v"+v) != "v"+v {
			return usagef("%q is no version: expected one such as 1.11.0", v)
		}
	}
	switch c := bisect.Compare(from, to); {
	case c == 0:
		return usagef("FROM and TO are both %s: there is no upgrade", from)
	case c > 0:
		return usagef("FROM %s is newer than TO %s: that is the way back, which is in the table of relapse qualify %s %s %s", from, to, component, to, from)
	}
	return nil
}

// trial is what is asked of one scenario: each of two versions, or the upgrade from one
// to the other, where the scenario has both in it.
type trial struct {
	scenario framework.Scenario
	// varied is the component's name in the scenario, and old that of the version
	// before the upgrade; empty where the scenario has one version.
	varied, old string
	from, to    string
}

// trialsOf are those of the scenarios that concern a component.
func trialsOf(all []framework.Scenario, component, from, to string) ([]trial, error) {
	var trials []trial
	var known []string
	for _, s := range all {
		t := trial{scenario: s, from: from, to: to}
		for _, tested := range s.Tested {
			known = append(known, tested.Component())
			switch {
			case tested.Component() != component:
			case tested.Varied:
				t.varied = tested.Name
			default:
				t.old = tested.Name
			}
		}
		if t.varied != "" {
			trials = append(trials, t)
		}
	}
	if len(trials) == 0 {
		slices.Sort(known)
		return nil, usagef("no scenario concerns a component %q%s", component, topology.Nearest(component, slices.Compact(known)))
	}
	return trials, nil
}

// with are the versions that the scenario takes for one of the two.
func (t trial) with(version string) map[string]string {
	versions := map[string]string{t.varied: version}
	if t.old != "" {
		versions[t.old] = t.from
	}
	return versions
}

func (t trial) at(version string) (framework.Scenario, error) {
	return t.scenario.Unclassified(t.with(version))
}

// versions are those that it is asked of, in order.
func (t trial) versions() []string {
	if t.old != "" {
		return []string{t.to}
	}
	return []string{t.from, t.to}
}

// seen is where the incident has what becomes of one of the versions.
func (t trial) seen(i *qualify.Incident, version string) *qualify.Seen {
	if version == t.from {
		return &i.From
	}
	return &i.To
}

// plan says in a line what is asked.
func (t trial) plan() string {
	if t.old != "" {
		return fmt.Sprintf("%s with the upgrade itself", t.scenario.Incident.Name)
	}
	return fmt.Sprintf("%s with %s and with %s", t.scenario.Incident.Name, t.from, t.to)
}

// incident is what is known of it before it runs.
func (t trial) incident() (qualify.Incident, error) {
	u, err := t.at(t.to)
	if err != nil {
		return qualify.Incident{}, err
	}
	words := []string{"relapse", "run", t.scenario.Incident.Name}
	if t.old != "" {
		words = append(words, "--with", t.old+"="+t.from)
	}
	words = append(words, "--with", t.varied+"="+t.to)
	pending := qualify.Seen{Outcome: bisect.Skipped, Why: notComeTo}
	i := qualify.Incident{
		Name: t.scenario.Incident.Name, Title: t.scenario.Incident.Title, Form: string(u.Variants[0].Form), OfUpgrade: t.old != "",
		From: pending, To: pending, Remedies: t.scenario.Incident.Remedies, Issue: t.scenario.Incident.Issue,
		Command: shellescape.QuoteCommand(words),
	}
	if i.OfUpgrade {
		i.From = qualify.Seen{}
	}
	return i, nil
}

// notComeTo is the reason for what has not been asked yet.
const notComeTo = "it was not come to"

// known is an image of a version that a recipe builds: of a trial, or the slice that
// reads configurations. A version without any is refused.
func known(c *images.Catalogue, component string, trials []trial, version string) (ref string, err error) {
	var first error
	for _, t := range trials {
		name := t.varied
		if t.old != "" && version == t.from {
			name = t.old
		}
		u, err := t.scenario.Unclassified(map[string]string{name: version})
		if err != nil {
			return "", usagef("%w", err)
		}
		refs := slices.DeleteFunc(u.ImagesOf(nil, u.Variants...), func(ref string) bool {
			_, tag, _ := strings.Cut(ref, ":")
			return strings.TrimPrefix(tag, "v") != version
		})
		err = makeKnown(c, refs)
		if err == nil && len(refs) > 0 {
			return refs[0], nil
		}
		first = cmp.Or(first, err)
	}
	if component == "cilium" && sliceKnown(c, version) == nil {
		return agents.Image(version), nil
	}
	return "", first
}

// upgradeRun upgrades a component on a lab under traffic, and puts it back.
type upgradeRun func(ctx context.Context, from, to string) (upgrade.Measures, error)

// qualification is one under way.
type qualification struct {
	catalogue *images.Catalogue
	in        qualify.Inputs
	trials    []trial
	config    *qualify.ConfigMap // nil where none was given
	upgrade   upgradeRun         // nil where the component has none
	options   qualifyOptions

	thresholds qualify.Thresholds
	began      time.Time
	earlier    *qualify.Qualification // what it goes on with; nil where it is new
	relapse    string
	dir        string
	note       func(text string)
	step       func(name string) func(error)
	// had asks whether a version can be had. Nothing is built for that.
	had func(ctx context.Context, version string) error
	// judge makes what runs a trial's script on one version after the other, on one
	// lab, and down takes that lab down.
	judge func(t trial) (judge func(ctx context.Context, version string) (bisectionStep, error), down func() error)
	// configured asks both versions about the configuration.
	configured func(ctx context.Context) (qualify.Configuration, error)
	broken     []error // why something could not be judged, and was no version's fault
}

func runQualification(ctx context.Context, s *settings, stdin io.Reader, component, from, to string, o qualifyOptions) error {
	if o.timeout <= 0 {
		return usagef("--timeout: %s is no time to run in", o.timeout)
	}
	q := &qualification{options: o, began: time.Now()}
	var err error
	if q.thresholds, err = o.thresholds(); err != nil {
		return err
	}
	if q.trials, err = trialsOf(scenarios.All, component, from, to); err != nil {
		return err
	}
	if err := checkVersions(component, from, to); err != nil {
		return err
	}
	if q.config, err = readConfig(o.config, stdin); err != nil {
		return err
	}
	if q.catalogue, _, err = openCatalogue(); err != nil {
		return err
	}
	refs := map[string]string{}
	for _, version := range []string{from, to} {
		if refs[version], err = known(q.catalogue, component, q.trials, version); err != nil {
			return err
		}
	}
	var run suite.Options
	if declared, there := upgrade.For(component); there {
		q.upgrade = func(ctx context.Context, from, to string) (upgrade.Measures, error) {
			if err := makeKnown(q.catalogue, declared.ImagesOf(from, to)); err != nil {
				return upgrade.Measures{}, err
			}
			o := run.Options
			o.Output, o.Keep = filepath.Join(q.dir, "upgrade"), false
			return upgrade.Run(ctx, declared, from, to, suite.Labs(run), o)
		}
	}
	releases, err := q.catalogue.Releases(ctx, component)
	if err != nil {
		return err
	}
	if err := q.prepare(component, from, to, qualify.PathOf(releases, from, to)); err != nil {
		return err
	}
	if o.resume != "" {
		if err := q.goOn(o.resume); err != nil {
			return err
		}
	}
	q.printPlan(os.Stdout)
	if o.dryRun {
		return nil
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	if err := prepare(ctx, nil, &run); err != nil {
		return err
	}
	defer run.Docker.Close()
	if q.dir == "" {
		if q.dir, err = report.NewRun(filepath.Join(o.output, "qualify"), fmt.Sprintf("%s-%s-to-%s", component, from, to), q.began); err != nil {
			return usagef("--output: %w", err)
		}
	}
	// A write to whoever has gone away must not end this process before its lab is down.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	display := s.progress(os.Stdout, log)
	defer display.Close()
	run.Log, run.Progress, run.Images = log, display, q.catalogue
	run.Options.Output, run.Options.Keep = q.dir, true
	q.relapse = run.Relapse
	q.note = func(text string) { display.Note("qualify", text) }
	q.judge = func(t trial) (func(ctx context.Context, version string) (bisectionStep, error), func() error) {
		builds := func(version string) error {
			u, err := t.at(version)
			if err != nil {
				return err
			}
			return makeKnown(q.catalogue, u.ImagesOf(nil, u.Variants...))
		}
		j := &judge{oneLab: oneLab{options: run, timeout: o.timeout}, at: t.at, builds: builds}
		return j.judge, func() error { return j.down(t.scenario) }
	}
	q.had = func(ctx context.Context, version string) error { return q.catalogue.Derive(ctx, refs[version]) }
	q.step = func(name string) func(error) { return display.Step("qualify", name) }
	q.configured = func(ctx context.Context) (qualify.Configuration, error) {
		return askCilium(ctx, q.catalogue, q.in, *q.config, q.step)
	}
	err = q.run(ctx)
	display.Close()
	if err != nil {
		fmt.Fprintf(os.Stdout, "\nwhat was found until then: %s\ngo on with: %s --resume %s\n",
			q.dir, o.command(component, from, to), shellescape.Quote(q.dir))
		return err
	}
	fmt.Fprintf(os.Stdout, "\n%s\nreports: %s\n", q.judged().Text(), q.dir)
	verdict := q.judged().Verdict
	if len(q.broken) > 0 && verdict == qualify.Go {
		log.Warn("not all could be asked", "error", errors.Join(q.broken...)) // it does not decide
	}
	return outcomeOfQualification(verdict, errors.Join(q.broken...))
}

// prepare puts everything that will be asked into the inputs, as not come to.
func (q *qualification) prepare(component, from, to string, path qualify.Path) error {
	q.in = qualify.Inputs{Component: component, From: from, To: to, Path: path, Upgrade: qualify.Upgrade{Why: notComeTo}}
	for _, t := range q.trials {
		i, err := t.incident()
		if err != nil {
			return usagef("%w", err)
		}
		q.in.Incidents = append(q.in.Incidents, i)
	}
	c := &q.in.Configuration
	switch {
	case component != "cilium":
		c.NotAsked = fmt.Sprintf("what becomes of %s's configuration (its flags and environment) is not looked at: there is no slice that says", component)
	case q.config == nil:
		c.NotAsked = "what becomes of your configuration is not looked at: none was given (--config)"
	default:
		c.NotAsked, c.Decides = "what becomes of the configuration: "+notComeTo, true
	}
	if q.config != nil {
		c.Source, c.ConfigMap, c.Keys = q.options.config, q.config.String(), len(q.config.Data)
	}
	if q.upgrade == nil {
		q.in.Upgrade.Why = "this version of relapse has no upgrade of " + component
	}
	return nil
}

// goOn takes over what an earlier qualification of the same has found, by its folder.
// Its configuration is asked about again: the file may be another by now.
func (q *qualification) goOn(dir string) error {
	earlier, err := qualify.Read(dir)
	if err != nil {
		return usagef("--resume: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // it may be the link latest
		return usagef("--resume: %w", err)
	}
	was := earlier.Inputs
	if was.Component != q.in.Component || was.From != q.in.From || was.To != q.in.To {
		return usagef("--resume: %s is of %s %s to %s", dir, was.Component, was.From, was.To)
	}
	if was.Configuration.Source != "" && q.config == nil {
		return usagef("--resume: %s was also asked about the ConfigMap %s: give it again, by --config", dir, was.Configuration.ConfigMap)
	}
	for n := range q.in.Incidents {
		for _, i := range was.Incidents {
			if i.Name != q.in.Incidents[n].Name {
				continue
			}
			// What could not be had or built may be by now.
			if i.From.Verdict != "" {
				q.in.Incidents[n].From = i.From
			}
			if i.To.Verdict != "" {
				q.in.Incidents[n].To = i.To
			}
		}
	}
	if was.Upgrade.Measures != nil && was.Upgrade.Why == "" {
		q.in.Upgrade = was.Upgrade
	}
	q.earlier, q.dir = &earlier, dir
	return nil
}

// printPlan tells what will be asked.
func (q *qualification) printPlan(out io.Writer) {
	fmt.Fprintf(out, "qualify %s %s to %s\n", q.in.Component, q.in.From, q.in.To)
	for _, r := range q.judged().Rows {
		if r.Part == qualify.PartPath {
			fmt.Fprintf(out, "  %-14s %s\n", r.Name, r.Says)
		}
	}
	c := q.in.Configuration
	if c.Decides {
		fmt.Fprintf(out, "  %-14s %s, %d keys, asked of the slices of %s and %s\n", qualify.PartConfiguration, c.ConfigMap, c.Keys, q.in.From, q.in.To)
	} else {
		fmt.Fprintf(out, "  %-14s %s\n", qualify.PartConfiguration, c.NotAsked)
	}
	for n, t := range q.trials {
		fmt.Fprintf(out, "  %-14s %s\n", qualify.PartIncident, t.plan())
		for _, version := range t.versions() {
			if seen := t.seen(&q.in.Incidents[n], version); seen.Verdict != "" {
				fmt.Fprintf(out, "  %-14s   %s: %s already\n", "", version, seen.Verdict)
			}
		}
	}
	switch {
	case q.upgrade == nil:
		fmt.Fprintf(out, "  %-14s %s\n", qualify.PartUpgrade, q.in.Upgrade.Why)
	case q.in.Upgrade.Measures != nil:
		fmt.Fprintf(out, "  %-14s made already\n", qualify.PartUpgrade)
	default:
		fmt.Fprintf(out, "  %-14s from %s to %s on a lab under traffic, node after node, and back\n", qualify.PartUpgrade, q.in.From, q.in.To)
	}
}

// judged is what follows from what is known so far.
func (q *qualification) judged() qualify.Qualification {
	j := qualify.Judge(q.in, q.thresholds, q.options.command(q.in.Component, q.in.From, q.in.To))
	j.Began, j.TookMS, j.Relapse = q.began, time.Since(q.began).Milliseconds(), q.relapse
	if q.earlier != nil {
		j.Began, j.TookMS = q.earlier.Began, j.TookMS+q.earlier.TookMS
	}
	return j
}

func (q *qualification) save() error { return q.judged().Write(q.dir) }

// run asks part after part, and stores what is known after each.
func (q *qualification) run(ctx context.Context) error {
	if err := q.save(); err != nil {
		return err
	}
	// A version that is not published is better known before a lab is up.
	for _, version := range []string{q.in.From, q.in.To} {
		ended := q.step(version + " can be had")
		err := q.had(ctx, version)
		ended(err)
		if err := q.failed(ctx, onlyNotPublished(err)); err != nil {
			return err
		}
	}
	if q.in.Configuration.Decides {
		c, err := q.configured(ctx)
		if err := q.failed(ctx, err); err != nil {
			return err
		}
		if err != nil {
			c.NotAsked, c.Decides = "what becomes of the configuration: "+firstLine(err), true
		}
		c.Source, c.ConfigMap, c.Keys = q.in.Configuration.Source, q.in.Configuration.ConfigMap, q.in.Configuration.Keys
		q.in.Configuration = c
		if err := q.save(); err != nil {
			return err
		}
	}
	for n, t := range q.trials {
		if err := q.try(ctx, t, &q.in.Incidents[n]); err != nil {
			return err
		}
	}
	if q.upgrade != nil && q.in.Upgrade.Measures == nil {
		m, err := q.upgrade(ctx, q.in.From, q.in.To)
		if err := q.failed(ctx, err); err != nil {
			return err
		}
		q.in.Upgrade = qualify.Upgrade{Measures: &m}
		if err != nil {
			q.in.Upgrade.Why = firstLine(err)
		}
	}
	if err := q.save(); err != nil {
		return err
	}
	return report.SetLatest(q.dir)
}

// try runs the script of a trial on both versions, on one lab.
func (q *qualification) try(ctx context.Context, t trial, i *qualify.Incident) (err error) {
	judge, down := q.judge(t)
	defer func() { err = errors.Join(err, down()) }()
	for _, version := range t.versions() {
		if ctx.Err() != nil {
			return engine.ErrInterrupted
		}
		seen := t.seen(i, version)
		if seen.Verdict != "" { // from an earlier qualification
			continue
		}
		q.note(fmt.Sprintf("%s: %s is next", i.Name, version))
		step, err := judge(ctx, version)
		if err := q.failed(ctx, err); err != nil {
			return err
		}
		if err := q.failed(ctx, onlyNotPublished(step.err)); err != nil {
			return err
		}
		*seen = qualify.Seen{Outcome: step.Outcome, Verdict: step.Verdict, Why: step.Why, Report: step.Report, TookMS: step.TookMS}
		if err != nil {
			*seen = qualify.Seen{Outcome: bisect.Skipped, Why: firstLine(err)}
		}
		if err := q.save(); err != nil {
			return err
		}
		q.note(fmt.Sprintf("%s: %s: %s", i.Name, version, cmp.Or(seen.Verdict, seen.Why)))
	}
	return nil
}

// failed returns the error if nothing more can be asked after it: an interrupt, a
// version that the proxy has not got, a machine that is not fit. Any other, also that an
// image does not build, is kept, and what was asked is not judged. Where the proxy does not answer, what is built already
// still works.
func (q *qualification) failed(ctx context.Context, err error) error {
	var (
		missing *images.NotPublishedError
		silent  *images.UnreachableError
		build   *images.BuildError
	)
	switch {
	case ctx.Err() != nil && !errors.Is(err, engine.ErrInterrupted):
		return engine.ErrInterrupted // whatever it broke
	case err == nil, errors.As(err, &silent):
		return nil
	case errors.As(err, &build):
	case errors.Is(err, engine.ErrInterrupted), errors.As(err, &missing), exitStatus(ctx, err) == exitMachine:
		return err
	}
	q.broken = append(q.broken, err)
	return nil
}

// onlyNotPublished is the error if it says that the proxy has not got the version
// itself. Something that it requires may be needed by one image alone.
func onlyNotPublished(err error) error {
	var missing *images.NotPublishedError
	if errors.As(err, &missing) && !missing.Required {
		return err
	}
	return nil
}

// outcomeOfQualification is the error that gives the exit status.
func outcomeOfQualification(v qualify.Verdict, broken error) error {
	switch v {
	case qualify.Go:
		return nil
	case qualify.NoGo:
		return &verdictError{framework.Fail, broken}
	}
	return &verdictError{framework.Inconclusive, broken}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
