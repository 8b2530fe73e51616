package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/plan"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/merge"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/report/summary"
	"github.com/relapse-dev/relapse/topology/each"
)

func planCommand() *cobra.Command {
	var shards int
	var what selection
	cmd := &cobra.Command{
		Use:   "plan [NAME...]",
		Short: "Distribute scenarios over machines, as the matrix of a job of GitHub Actions",
		Long: `Plan distributes scenarios, by default all, over shards that take about the same time, and
writes them as the matrix of a job of GitHub Actions: JSON in one line. A scenario is never
split.

Exit status: 0 done; 2 bad input.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			what.names, what.all = args, len(args) == 0
			if shards < 1 {
				return usagef("--shards: %d: expected 1 or more", shards)
			}
			items, err := shardItems(what)
			if err != nil {
				return err
			}
			all := plan.Shards(items, shards)
			describePlan(cmd, items, all, shards)
			with := each.Joined(slices.Sorted(maps.Keys(what.with)), ",", func(name string) string { return name + "=" + what.with[name] })
			return plan.GitHub(cmd.OutOrStdout(), all, what.label, with)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&shards, "shards", 1, "the number of machines")
	flags.StringVar(&what.label, "label", "", "the variants with these labels, `EXPRESSION` as in 'cilium && !slow' (list shows them)")
	flags.StringToStringVar(&what.with, "with", nil, "run the scripts on versions that no variant has, `COMPONENT=VERSION` (see run)")
	return cmd
}

func shardItems(what selection) ([]plan.Item, error) {
	recorded, err := figures.Recorded()
	if err != nil {
		return nil, err
	}
	chosen, _, err := what.scenarios()
	if err != nil {
		return nil, err
	}
	if len(what.with) > 0 {
		if err := chooseVersions(slices.Clone(chosen), what.with, nil); err != nil {
			return nil, err
		}
	}
	return each.Of(chosen, func(s framework.Scenario) plan.Item {
		lasts, _ := recorded.Usually(s.Incident.Name) // 0: not known
		return plan.Item{Scenario: s.Incident.Name, Lasts: lasts}
	}), nil
}

func describePlan(cmd *cobra.Command, items []plan.Item, all []plan.Shard, wanted int) {
	for _, s := range all {
		fmt.Fprintf(cmd.ErrOrStderr(), "shard %d: %s, usually %s, cancelled after %s\n",
			s.Number, strings.Join(s.Scenarios(), ", "), s.Lasts().Round(time.Second), s.Limit())
	}
	for _, i := range items {
		if i.Lasts == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s was not measured: it is assumed to take as long as the longest\n", i.Scenario)
		}
	}
	if len(all) < wanted {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d shards are enough for %d scenarios: a scenario is not split\n", len(all), len(items))
	}
}

func mergeCommand() *cobra.Command {
	var output string
	var expected []string
	cmd := &cobra.Command{
		Use:   "merge DIR...",
		Short: "Bring the runs of several processes or machines together",
		Long: `Merge takes the newest run of each scenario from each folder, and copies one run of each
scenario, with one page, summary and junit.xml of all. Of a scenario that several folders have
it takes the run with the worst verdict, and says so. With --expect, what relapse
plan names and no folder has is inconclusive.

Exit status: as of run, for all runs together; a scenario with two different verdicts is
inconclusive at best; 2 bad input.`,
		Args: portable.SomeArgs("the folders of runs, or folders with runs in them"),
		RunE: func(cmd *cobra.Command, args []string) error { return mergeRuns(cmd, args, output, expected) },
	}
	cmd.Flags().StringVar(&output, "output", "merged", "folder for the merged reports")
	cmd.Flags().StringSliceVar(&expected, "expect", nil,
		"the `NAMES` of all scenarios that were to run: one without a report is inconclusive")
	return cmd
}

func mergeRuns(cmd *cobra.Command, dirs []string, output string, expected []string) error {
	shards, older, empty, err := merge.Find(dirs...)
	if err != nil {
		return usagef("merging: %w", err)
	}
	if len(empty) > 0 && len(expected) == 0 {
		return usagef("merging: there is no report.json in %s, nor in a folder below it", empty[0])
	}
	out := cmd.OutOrStdout()
	for _, dir := range empty {
		fmt.Fprintf(out, "no report in %s\n", dir)
	}
	if older > 0 {
		fmt.Fprintf(out, "left out %d older runs of the same scenarios in the same folders\n", older)
	}
	var runs []string
	var reports []report.Report
	scenarios, err := merge.ByScenario(shards)
	if err != nil {
		return usagef("merging: %w", err)
	}
	for _, parts := range scenarios {
		var variants []string
		if slices.Contains(expected, parts[0].Report.Scenario) {
			variants = variantsOf(parts[0].Report)
		}
		dir, merged, err := merge.Write(output, parts, variants...)
		if err != nil {
			return err
		}
		runs, reports = append(runs, dir), append(reports, merged)
		printReport(out, merged, output)
		for _, c := range merged.Merged.Conflicts {
			fmt.Fprintf(out, "  conflict: %s\n", plain.Line(c))
		}
	}
	for _, r := range merge.Missing(expected, reports) {
		reports = append(reports, r)
		fmt.Fprintf(out, "\n%s: INCONCLUSIVE, %s\n", r.Scenario, strings.Join(r.Merged.Conflicts, "; "))
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return fmt.Errorf("making the folder of the merged reports: %w", err)
	}
	if err := errors.Join(
		junit.Write(junit.InFolder(output), reports...), summary.Write(output, reports),
		page.WriteIndex(output, runs),
	); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d runs merged into %d; index: %s\n", len(shards), len(runs), filepath.Join(output, page.IndexName))
	return outcome(reports, nil)
}

// variantsOf returns the variants that the scenario of a report has in the catalogue. For a run with --label or --with
// it returns the variants of the report.
func variantsOf(r report.Report) []string {
	own := strings.Contains(r.Command, "--label") ||
		slices.ContainsFunc(r.Variants, func(v report.Variant) bool { return v.Role == string(framework.Unclassified) })
	s, err := scenarioNamed(r.Scenario)
	if err != nil || own { // an error: the report is of another version of relapse
		return each.Of(r.Variants, func(v report.Variant) string { return v.Name })
	}
	return variantNames(s)
}
