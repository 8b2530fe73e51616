package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bump"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/status"
)

const bumpHelp = `Bump finds the versions of components that a change of a git repository raises or lowers, between
the merge base with a branch and the work tree, and the values of their charts. It prints what is
known of each upgrade, and how it would be qualified; --run qualifies it.

A version that it cannot read is named, with the reason. cmd/relapse/README.md, "Bump", says what it
reads. Both versions are qualified with the values after the change.

Exit status: of the worst qualification, as of qualify; 0 if no version has changed; 3 if none that
has can be qualified, 4 if others are GO; 2, 6 and 130 as for all commands.`

type bumpOptions struct {
	qualifyOptions
	base, dir, comment string
	components         []string
	run                bool
}

func bumpCommand(s *settings) *cobra.Command {
	var o bumpOptions
	cmd := &cobra.Command{
		Use:   "bump",
		Short: "Find the upgrades that a change of a git repository makes, and qualify them",
		Long:  bumpHelp,
		Example: `  relapse bump --base origin/main
  sudo relapse bump --base origin/main --components cilium,metallb --run --comment comment.md`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.bump(cmd.Context(), s, cmd.OutOrStdout()) },
	}
	o.register(cmd, "print the plan, as without --run")
	flags := cmd.Flags()
	flags.StringVar(&o.base, "base", "origin/main", "the `BRANCH` or commit that the change is for")
	flags.StringVar(&o.dir, "repository", ".", "the work tree, `DIR`")
	flags.StringSliceVar(&o.components, "components", nil, "these `COMPONENTS` alone, such as cilium,metallb")
	flags.BoolVar(&o.run, "run", false, "run the qualifications")
	flags.BoolVar(&o.fresh, "fresh", false, "for --run: as of qualify")
	flags.StringVar(&o.comment, "comment", "", "a `FILE` for the result as Markdown")
	return cmd
}

type bumped struct {
	bump.Raise
	verdict string // of a qualification, or one of the constants below
	says    string // Markdown
	failure error  // of the command itself
}

const (
	notQualified = "not qualified"
	planned      = "planned"
)

var worst = []string{string(qualify.NoGo), string(qualify.Unknown), planned, notQualified, string(qualify.Go)}

func (b bumped) String() string {
	return fmt.Sprintf("%s %s to %s: %s", b.Component, b.From, b.To, b.verdict)
}

func (o bumpOptions) bump(ctx context.Context, s *settings, to io.Writer) error {
	for _, name := range o.components {
		if !upgrade.Has(name) {
			return usagef("--components: no component %q%s", name, topology.Nearest(name, upgrade.Components()))
		}
	}
	repository, err := bump.Open(ctx, o.dir, o.base)
	if err != nil {
		return err
	}
	plan, out := repository.Plan(o.components...), plain.Writer(to)
	plan.Write(out)
	o.maxGap, o.maxLost, o.dryRun = time.Second, "0.1%", o.dryRun || !o.run
	var all []bumped
	for _, raise := range plan.Raises {
		if ctx.Err() == nil {
			all = append(all, o.judged(ctx, s, out, raise))
		}
	}
	return o.conclude(plan, all)
}

// conclude writes the comment, and returns the error with the status of all results.
func (o bumpOptions) conclude(plan bump.Plan, all []bumped) error {
	slices.SortStableFunc(all, func(a, b bumped) int { return slices.Index(worst, a.verdict) - slices.Index(worst, b.verdict) })
	verdicts := each.Of(all, func(b bumped) string { return b.verdict })
	if len(plan.NotRead) > 0 {
		verdicts = append(verdicts, notQualified)
	}
	verdict, _ := each.First(worst, func(v string) bool { return slices.Contains(verdicts, v) })
	switch {
	case verdict == notQualified && slices.Contains(verdicts, string(qualify.Go)):
		verdict = string(qualify.Unknown)
	case verdict == "" && len(plan.Lines) > 0:
		verdict = "no version was read"
	case verdict == "":
		verdict = "no version has changed"
	}
	if err := o.writeComment(verdict, plan, all); err != nil {
		return err
	}
	failure := errors.Join(each.Of(all, func(b bumped) error { return b.failure })...)
	switch {
	case verdict == string(qualify.NoGo):
		return judgedAs(framework.Fail, failure)
	case failure != nil:
		return failure
	case verdict == string(qualify.Unknown):
		return judgedAs(framework.Inconclusive, nil)
	case verdict == notQualified:
		return status.Machine("no version that has changed can be qualified")
	}
	return nil
}

func (o bumpOptions) judged(ctx context.Context, s *settings, out io.Writer, raise bump.Raise) bumped {
	fmt.Fprintln(out)
	b := bumped{Raise: raise, verdict: planned, says: "`relapse bump --run` qualifies it."}
	r, err := o.qualified(ctx, s, out, raise)
	switch {
	case r != nil && !o.dryRun:
		result := r.Result()
		b.verdict, b.says = string(result.Verdict), result.Markdown()
	case err != nil:
		b.verdict, b.says = notQualified, plain.Inline(err.Error())+"\n"
		fmt.Fprintln(out, plain.Line(fmt.Sprintf("%s: %v", b, err)))
		if status := statusOf(err); status != exitUsage && status != exitMachine {
			b.failure = err
		}
	}
	return b
}

// qualified says what is known of a raise, and qualifies it. The runner is nil if there is no result.
func (o bumpOptions) qualified(ctx context.Context, s *settings, out io.Writer, raise bump.Raise) (*qualify.Runner, error) {
	component, from, to, files := raise.Component, raise.From, raise.To, raise.After.Files
	if err := advise.CheckValues(component, from, to); err != nil && len(files) > 0 {
		fmt.Fprintf(out, "%s %s to %s is qualified without your values: %v\n", component, from, to, err)
		files = nil
	}
	o.Files = each.Of(files, func(f releasefile.File) string { return f.Name })
	given, err := releasefile.ReadAll(component, nil, files...)
	if err != nil {
		return nil, usagef("%w", err)
	}
	given.Version = "" // the file states the version TO
	var values *releasefile.Given
	if len(files) > 0 && len(raise.After.NotRead) == 0 { // or values that are not read may make an incident possible
		values = &given
	}
	results, err := portable.Results("")
	if err != nil {
		return nil, err
	}
	advice, err := advise.Advise(portable.Subjects(), results, component, from, to, values)
	if err != nil {
		return nil, usagef("%w", err)
	}
	advice.Write(out)
	fmt.Fprintln(out)
	q, err := o.request(component, from, to, nil)
	if err != nil {
		return nil, err
	}
	words := []string{"relapse", "bump", "--base", o.base, "--run", "--components", component}
	if o.fresh {
		words = append(words, "--fresh")
	}
	q.Command = shellescape.QuoteCommand(words)
	if q.Values, err = o.readValues(ctx, q, given); err != nil {
		return nil, err
	}
	r, err := runQualification(ctx, s, q, o.qualifyOptions)
	if r != nil && o.dryRun {
		err = r.Published(ctx)
	}
	return r, err
}

// longestComment is GitHub's limit for a comment, less the size of the comment's end.
const longestComment = 65536 - 1024

// writeComment writes one comment for all raises, the worst first. Its first line is the verdict and the summary.
func (o bumpOptions) writeComment(verdict string, plan bump.Plan, all []bumped) error {
	if o.comment == "" {
		return nil
	}
	var text, overview strings.Builder
	plan.Write(&overview)
	fmt.Fprintf(&text, "**%s** %s\n\n%s", verdict, plain.Inline(each.Joined(all, "; ", bumped.String)), plain.Fenced(overview.String()))
	for _, b := range all {
		section := fmt.Sprintf("\n<details><summary>%s</summary>\n\n%s\n</details>\n", plain.Inline(b.String()), b.says)
		if text.Len()+len(section) > longestComment {
			section = fmt.Sprintf("\n%s: the result is too long for this comment\n", plain.Inline(b.String()))
		}
		text.WriteString(section)
	}
	err := os.MkdirAll(filepath.Dir(o.comment), 0o755)
	if err == nil {
		err = rundir.Replace(o.comment, []byte(text.String()))
	}
	if err != nil {
		return usagef("--comment: %w", err)
	}
	return nil
}
