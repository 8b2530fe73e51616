package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/plan"
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
	var items []plan.Item
	for _, s := range chosen {
		lasts, _ := recorded.Usually(s.Incident.Name) // zero if it is not known
		items = append(items, plan.Item{Scenario: s.Incident.Name, Lasts: lasts})
	}
	return items, nil
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
