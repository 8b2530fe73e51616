package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
)

// bisectOptions are the flags of bisect.
type bisectOptions struct {
	from, to string
	pre      bool
	with     map[string]string // versions of what is not varied
	output   string
	resume   string // the folder of an earlier bisection
	timeout  time.Duration
	dryRun   bool
}

func bisectCommand(s *settings) *cobra.Command {
	var o bisectOptions
	cmd := &cobra.Command{
		Use:   "bisect NAME COMPONENT",
		Short: "Find the version of a component that broke it, or fixed it",
		Long: `Bisect runs a scenario's script on versions of a component, without lesser
forms and remedies, until it is known between which two versions what is seen
changes. Both ends are run first. Fixes are ported back: the versions of each minor
are a branch of their own, whose ends are run as well.

A version is affected where its verdict is reproduced or missed, and not affected
where it is prevented or refused. One that cannot be had, built or judged is gone
round, and so is an end that lacks what the incident is about. Where an incident strikes by chance a version that is not struck runs until
luck would explain that in less than 1% of all cases, by the rates on record.

The lab is kept between two runs, where one version takes nothing over from another,
and taken down at the end or at an interrupt.
OUTPUT/bisect/NAME-COMPONENT-<time> has a report of each run and bisect.json,
with which --resume goes on.

Exit status: 0 it is known which version changed it; 1 both ends are alike; 4 only a
range is left, or an end could not be judged; 2, 3 and 130 as for all commands.`,
		Example: "  relapse bisect node-drain cilium --from 1.11.6 --to 1.12.0 --pre",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("relapse bisect takes two arguments, the names of a scenario and of a component, such as node-drain cilium")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			scenario, err := scenarioNamed(args[0])
			if err != nil {
				return err
			}
			tested, there := scenario.Find(args[1])
			if !there {
				var names []string
				for _, t := range scenario.Tested {
					names = append(names, t.Name)
				}
				return usagef("scenario %q tests no component %q%s", args[0], args[1], topology.Nearest(args[1], names))
			}
			return runBisection(cmd.Context(), s, scenario, tested, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "the lowest version, `VERSION`; without it, the lowest that can be built")
	flags.StringVar(&o.to, "to", "", "the highest version, `VERSION`; without it, the highest that can be built")
	flags.BoolVar(&o.pre, "pre", false, "pre-releases as well")
	flags.StringToStringVar(&o.with, "with", nil, "the version of another component of the script, `COMPONENT=VERSION`")
	flags.StringVar(&o.output, "output", "reports", "folder for the reports")
	flags.StringVar(&o.resume, "resume", "", "go on with what was interrupted, by its folder, `DIR`")
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "bound on each run")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the plan, and run nothing")
	return cmd
}

// candidates are the versions to look among: those of the component from one end to
// the other. The unbuildable ones among them have the reason. Both ends must be
// versions that recipes build, or of which it is known what they have not got.
func candidates(releases images.Releases, o bisectOptions, builds func(version string) error) (versions []string, unbuildable map[string]string, err error) {
	for name, end := range map[string]string{"--from": o.from, "--to": o.to} {
		if end != "" && semver.Canonical("v"+end) != "v"+end {
			return nil, nil, usagef("%s: %q is no version: expected one such as 1.11.0", name, end)
		}
	}
	if o.from != "" && o.to != "" {
		switch c := bisect.Compare(o.from, o.to); {
		case c == 0:
			return nil, nil, usagef("--from and --to are both %s: there is nothing between them", o.from)
		case c > 0:
			return nil, nil, usagef("--from %s is newer than --to %s: give the older one as --from; whether the newer one broke it or fixed it is found in either case", o.from, o.to)
		}
	}
	unbuildable = map[string]string{}
	for _, end := range []string{o.from, o.to} {
		if end == "" {
			continue
		}
		if err := builds(end); err != nil {
			why := lacks(err)
			if why == "" {
				return nil, nil, err
			}
			unbuildable[end] = why
		}
		versions = append(versions, end) // whether somebody lists it or not
	}
	var buildable []string
	for _, r := range releases.Versions {
		v := r.Version
		switch {
		case o.from != "" && bisect.Compare(v, o.from) <= 0, o.to != "" && bisect.Compare(v, o.to) >= 0:
			continue
		case semver.Prerelease("v"+v) != "" && !o.pre:
			continue
		}
		versions = append(versions, v)
		if err := builds(v); err != nil {
			unbuildable[v] = cmp.Or(lacks(err), "no recipe builds it")
			continue
		}
		buildable = append(buildable, v)
	}
	slices.SortFunc(versions, bisect.Compare)
	if o.from == "" || o.to == "" { // an end is the outermost that can be built
		ends := append(slices.DeleteFunc([]string{o.from, o.to}, func(v string) bool { return v == "" }), buildable...)
		if len(ends) == 0 {
			return nil, nil, usagef("no version of %s can be built", releases.Component)
		}
		slices.SortFunc(ends, bisect.Compare)
		low, high := ends[0], ends[len(ends)-1]
		versions = slices.DeleteFunc(versions, func(v string) bool { return bisect.Compare(v, low) < 0 || bisect.Compare(v, high) > 0 })
	}
	for v := range unbuildable {
		if !slices.Contains(versions, v) {
			delete(unbuildable, v)
		}
	}
	return versions, unbuildable, nil
}

// lacks is what a version has not got, and so is built by no recipe; empty where that is
// not known.
func lacks(err error) string {
	// Of several images that of the component under test may be any.
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			if why := lacks(err); why != "" {
				return why
			}
		}
		return ""
	}
	var unknown *images.UnknownVersionError
	if errors.As(err, &unknown) {
		return unknown.Why
	}
	return ""
}

func runBisection(ctx context.Context, s *settings, scenario framework.Scenario, tested framework.Tested, o bisectOptions) error {
	if o.timeout <= 0 {
		return usagef("--timeout: %s is no time to run in", o.timeout)
	}
	catalogue, _, err := openCatalogue()
	if err != nil {
		return err
	}
	at := func(version string) (framework.Scenario, error) {
		versions := maps.Clone(o.with)
		if versions == nil {
			versions = map[string]string{}
		}
		versions[tested.Name] = version
		return scenario.Unclassified(versions)
	}
	for name := range o.with {
		if t, there := scenario.Find(name); there && t.Name == tested.Name {
			return usagef("--with %s: that is what is looked for", name)
		}
	}
	if _, err := at(tested.Default); err != nil {
		return usagef("--with: %w", err)
	}
	builds := func(version string) error {
		u, err := at(version)
		if err != nil {
			return err
		}
		return makeKnown(catalogue, u.ImagesOf(nil, u.Variants...))
	}
	b := &bisection{out: os.Stdout}
	if o.resume != "" {
		if o.from != "" || o.to != "" || o.pre || len(o.with) > 0 {
			return usagef("--resume goes on with the versions of %s: it takes no --from, --to, --pre or --with", o.resume)
		}
		if b.record, err = readBisection(o.resume); err != nil {
			return err
		}
		if b.record.Scenario != scenario.Incident.Name || b.record.Component != tested.Name {
			return usagef("--resume: %s is of %s %s", o.resume, b.record.Scenario, b.record.Component)
		}
		// What could not be had or built may be by now.
		b.record.Steps = slices.DeleteFunc(b.record.Steps, func(s bisectionStep) bool { return s.Verdict == "" })
		o.with, b.dir = b.record.With, o.resume
	} else {
		releases, err := catalogue.Releases(ctx, tested.Component())
		if err != nil {
			return err
		}
		versions, unbuildable, err := candidates(releases, o, builds)
		if err != nil {
			return err
		}
		b.record = bisectionRecord{
			Schema: bisectionSchema, Scenario: scenario.Incident.Name, Component: tested.Name, With: o.with, Versions: versions,
		}
		for _, v := range slices.SortedFunc(maps.Keys(unbuildable), bisect.Compare) {
			b.record.Steps = append(b.record.Steps, bisectionStep{Version: v, Outcome: bisect.Skipped, Why: unbuildable[v]})
		}
	}
	if err := b.begin(); err != nil {
		return usagef("%w", err)
	}
	b.printPlan()
	if o.dryRun {
		return nil
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	var run suite.Options
	if err := prepare(ctx, nil, &run); err != nil {
		return err
	}
	defer run.Docker.Close()
	if b.dir == "" {
		if b.dir, err = report.NewRun(filepath.Join(o.output, "bisect"), scenario.Incident.Name+"-"+tested.Name, time.Now()); err != nil {
			return usagef("--output: %w", err)
		}
	}
	if err := b.save(); err != nil {
		return err
	}
	// A write to whoever has gone away must not end this process before its lab is down.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	display := s.progress(os.Stdout, log)
	defer display.Close()
	run.Log, run.Progress, run.Images = log, display, catalogue
	run.Options.Output, run.Options.Keep = b.dir, true
	j := &judge{oneLab: oneLab{options: run, timeout: o.timeout}, at: at, builds: builds}
	b.judge, b.note = j.judge, func(text string) { display.Note("bisect", text) }
	err = b.search(ctx, func(version string) bool { return version == o.from || version == o.to })
	err = errors.Join(err, j.down(scenario))
	display.Close()
	switch {
	case ctx.Err() != nil || errors.Is(err, engine.ErrInterrupted):
		fmt.Fprintf(b.out, "\ngo on with: relapse bisect %s %s --resume %s\n", b.record.Scenario, b.record.Component, b.dir)
		if errors.Is(err, engine.ErrInterrupted) {
			return err
		}
		return errors.Join(engine.ErrInterrupted, err) // the lab may not be down
	case err != nil:
		return fmt.Errorf("%w\ngo on with: relapse bisect %s %s --resume %s", err, b.record.Scenario, b.record.Component, b.dir)
	}
	b.printResult()
	return b.outcome()
}

// bisection is a search for a version, with what became of those that were asked for.
type bisection struct {
	record bisectionRecord
	dir    string // of the record and the reports
	out    io.Writer
	note   func(text string)
	judge  func(ctx context.Context, version string) (bisectionStep, error)
	find   *bisect.Search
}

// begin makes the search, and tells it what is known already.
func (b *bisection) begin() error {
	var err error
	if b.find, err = bisect.New(b.record.Versions); err != nil {
		return err
	}
	for _, step := range b.record.Steps {
		b.find.Tell(step.Version, step.Outcome)
	}
	return nil
}

// search judges version after version, until the result stands. An end that somebody
// has named must be one that can be had.
func (b *bisection) search(ctx context.Context, named func(version string) bool) error {
	for {
		version, more := b.find.Next()
		if !more {
			return nil
		}
		if ctx.Err() != nil {
			return engine.ErrInterrupted
		}
		b.note(fmt.Sprintf("%s is next; %s", version, b.left()))
		step, err := b.judge(ctx, version)
		var missing *images.NotPublishedError
		switch {
		case ctx.Err() != nil:
			return engine.ErrInterrupted
		case err != nil:
			return err
		case errors.As(step.err, &missing) && named(version):
			return step.err
		}
		b.record.Steps = append(b.record.Steps, step)
		b.find.Tell(version, step.Outcome)
		if err := b.save(); err != nil {
			return err
		}
		b.note(version + ": " + step.says())
	}
}

// left says how many runs are left, and how long they take if they take as long as
// those before.
func (b *bisection) left() string {
	n := b.find.Left()
	text := fmt.Sprintf("%d runs are left at most", n)
	if n == 1 {
		text = "one run is left at most"
	}
	var took, runs int64
	for _, s := range b.record.Steps {
		if s.Verdict != "" {
			took, runs = took+s.TookMS, runs+1
		}
	}
	if runs > 0 {
		text += fmt.Sprintf(", some %s", (time.Duration(took/runs*int64(n)) * time.Millisecond).Round(time.Second))
	}
	return text
}

func (b *bisection) save() error { return b.record.write(b.dir) }

// spans lists some versions, lowest first. Of those that follow each other among all,
// which are in that order as well, the first and the last are named.
func spans(some, all []string) string {
	var text []string
	for len(some) > 0 {
		at, n := slices.Index(all, some[0]), 1
		for at >= 0 && n < len(some) && at+n < len(all) && some[n] == all[at+n] {
			n++
		}
		switch {
		case n > 2:
			text = append(text, some[0]+" to "+some[n-1])
		default:
			text = append(text, some[:n]...)
		}
		some = some[n:]
	}
	return strings.Join(text, ", ")
}

// printPlan tells what is looked among, and how many runs that takes.
func (b *bisection) printPlan() {
	fmt.Fprintf(b.out, "%s: %s from %s to %s, %d versions\n", b.record.Scenario, b.record.Component,
		b.record.Versions[0], b.record.Versions[len(b.record.Versions)-1], len(b.record.Versions))
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	minor, line := "", []string{}
	flush := func() {
		for i, some := range slices.Collect(slices.Chunk(line, 10)) {
			if i > 0 {
				minor = ""
			}
			fmt.Fprintf(table, "  %s\t%s\n", minor, strings.Join(some, " "))
		}
	}
	for _, v := range b.record.Versions {
		if m := strings.TrimPrefix(semver.MajorMinor("v"+v), "v"); m != minor {
			flush()
			minor, line = m, nil
		}
		line = append(line, v)
	}
	flush()
	table.Flush()
	var why []string
	because := map[string][]string{}
	for _, s := range b.record.Steps {
		if because[s.says()] == nil {
			why = append(why, s.says())
		}
		because[s.says()] = append(because[s.says()], s.Version)
	}
	for _, says := range why {
		fmt.Fprintf(b.out, "  %s: %s\n", spans(because[says], b.record.Versions), says)
	}
	if v, more := b.find.Next(); more {
		fmt.Fprintf(b.out, "  first %s; %s\n", v, b.left())
	}
}

// printResult tells what became of each version, and what follows.
func (b *bisection) printResult() {
	fmt.Fprintf(b.out, "\n%s\n", b.conclusion())
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  VERSION\tIS\tVERDICT\tTOOK\tREPORT")
	steps := slices.SortedStableFunc(slices.Values(b.record.Steps), func(x, y bisectionStep) int { return bisect.Compare(x.Version, y.Version) })
	for len(steps) > 0 {
		s := steps[0]
		// Versions in a row that did not run for the same reason are one line.
		same := 1
		for s.Verdict == "" && same < len(steps) && steps[same].Verdict == "" && steps[same].Why == s.Why {
			same++
		}
		if same > 1 {
			s.Version += " to " + steps[same-1].Version
		}
		steps = steps[same:]
		took := "-"
		if s.TookMS > 0 {
			took = fmt.Sprintf("%.1fs", float64(s.TookMS)/1000)
		}
		verdict := cmp.Or(s.Verdict, s.Why)
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", s.Version, s.Outcome, verdict, took, cmp.Or(s.Report, "-"))
	}
	table.Flush()
	fmt.Fprintf(b.out, "  reports and bisect.json: %s\n", b.dir)
}

// conclusion is the answer, in a sentence a change.
func (b *bisection) conclusion() string {
	r := b.find.Result()
	name := b.record.Scenario + ", " + b.record.Component
	if low, high, beyond := b.judged(); r.Alike != "" && len(beyond) > 0 {
		return fmt.Sprintf("%s: %s and %s are alike, and no version beyond them could be judged: %s; not judged: %s",
			name, low, high, r.Alike, spans(beyond, b.record.Versions))
	} else if r.Alike != "" {
		return fmt.Sprintf("%s: both ends are alike: %s", name, r.Alike)
	}
	if len(r.Changes) == 0 {
		return name + ": no version could be judged"
	}
	var all []string
	for _, c := range r.Changes {
		does, was := "fixed", "last affected "
		if c.Outcome == bisect.Affected {
			does, was = "broken", "last not affected "
		}
		text := fmt.Sprintf("%s: %s in %s; %s%s", name, does, c.First, was, c.Last)
		if n := len(c.Between); n > 0 {
			text = fmt.Sprintf("%s: %s in %s or before it; %s%s; not judged: %s", name, does, c.First, was, c.Last, strings.Join(c.Between, ", "))
		}
		// A fix may have been ported back to what nobody could judge.
		var unjudged []string
		for _, s := range b.record.Steps {
			between := bisect.Compare(s.Version, c.Last) > 0 && bisect.Compare(s.Version, c.First) < 0
			if s.Outcome == bisect.Skipped && between && !slices.Contains(c.Between, s.Version) {
				unjudged = append(unjudged, s.Version)
			}
		}
		if len(unjudged) > 0 {
			slices.SortFunc(unjudged, bisect.Compare)
			text += fmt.Sprintf("; of the branch before, nobody knows of %s", spans(unjudged, b.record.Versions))
		}
		all = append(all, text)
	}
	for _, s := range b.record.Steps {
		if s.Verdict == string(framework.Refused) {
			all = append(all, fmt.Sprintf("%s: %s refuses to start, which counts as not affected", name, s.Version))
		}
	}
	return strings.Join(all, "\n")
}

// judged are the lowest and the highest version that could be judged, and those beyond
// them that ran and could not, lowest first.
func (b *bisection) judged() (low, high string, beyond []string) {
	steps := slices.SortedFunc(slices.Values(b.record.Steps), func(x, y bisectionStep) int { return bisect.Compare(x.Version, y.Version) })
	for _, s := range steps {
		if s.Outcome != bisect.Skipped {
			low, high = cmp.Or(low, s.Version), s.Version
		}
	}
	for _, s := range steps {
		outside := bisect.Compare(s.Version, low) < 0 || bisect.Compare(s.Version, high) > 0
		if s.Outcome == bisect.Skipped && s.Verdict != "" && outside {
			beyond = append(beyond, s.Version)
		}
	}
	return low, high, beyond
}

// outcome is the error that gives the exit status.
func (b *bisection) outcome() error {
	_, _, beyond := b.judged()
	switch r := b.find.Result(); {
	case r.Alike != "" && len(beyond) == 0:
		return &verdictError{framework.Fail, nil}
	case !r.Exact():
		return &verdictError{framework.Inconclusive, nil}
	}
	return nil
}
