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
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Formats of a plan.
const (
	planGitHub = "github"
	planJobs   = "jobs"
)

var planFormats = []string{planGitHub, planJobs}

func planCommand() *cobra.Command {
	var (
		format string
		shards int
		what   selection
		pods   plan.Pods
	)
	cmd := &cobra.Command{
		Use:   "plan [NAME...]",
		Short: "Distribute scenarios over machines: a GitHub matrix, or Kubernetes Jobs",
		Long: `Plan distributes scenarios, by default all, over shards that take about the same time, and
writes them for the system that runs them: github, the matrix of a job of GitHub Actions, or
jobs, Kubernetes Jobs for kubectl create -f -. A scenario is never split.
cmd/relapse/README.md, "The night", says what the Jobs need.

Exit status: 0 done; 2 bad input.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			what.names, what.all = args, len(args) == 0
			if !slices.Contains(planFormats, format) {
				return usagef("-o: %q: expected %s%s", format, strings.Join(planFormats, ", "), topology.Nearest(format, planFormats))
			}
			if shards < 1 {
				return usagef("--shards: %d: expected 1 or more", shards)
			}
			if format == planJobs && pods.Image == "" {
				return usagef("-o %s: expected --image, with the reference by which the cluster pulls relapse.dev/relapse:dev", planJobs)
			}
			items, err := shardItems(what)
			if err != nil {
				return err
			}
			all := plan.Shards(items, shards)
			describePlan(cmd, items, all, shards)
			out := cmd.OutOrStdout()
			with := each.Joined(slices.Sorted(maps.Keys(what.with)), ",", func(name string) string { return name + "=" + what.with[name] })
			run := plan.Run{Label: what.label, With: with, Folder: time.Now().UTC().Format("2006-01-02T15-04-05Z")}
			if format == planJobs {
				fmt.Fprintf(cmd.ErrOrStderr(), "when all have ended, in %s: %s\n", plan.Claim, run.MergeCommand(all))
				return plan.Jobs(out, all, run, pods)
			}
			return plan.GitHub(out, all, run)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&format, "output", "o", planGitHub, "what to write: "+strings.Join(planFormats, ", "))
	flags.IntVar(&shards, "shards", 1, "the number of machines")
	flags.StringVar(&what.label, "label", "", "the variants with these labels, `EXPRESSION` as in 'cilium && !slow' (list shows them)")
	flags.StringToStringVar(&what.with, "with", nil, "run the scripts on versions that no variant has, `COMPONENT=VERSION` (see run)")
	flags.StringVar(&pods.Image, "image", "", "for -o jobs: the image of the pods as the cluster pulls it, `REF`, best with its digest")
	flags.StringVar(&pods.Cache, "cache", "",
		"a PersistentVolumeClaim, `CLAIM`, for what pods download and build; without one each pod builds its images anew")
	return cmd
}

func shardItems(what selection) ([]plan.Item, error) {
	recorded, err := figures.Recorded()
	if err != nil {
		return nil, err
	}
	chosen, _, err := what.scenarios(nil)
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
