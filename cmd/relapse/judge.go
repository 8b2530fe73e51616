package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/merge"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/verdict"
)

func judgeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "judge DIR...",
		Short: "Judge stored runs with the current engine and detectors",
		Long: `Judge judges stored runs again, from their evidence only: with today's detectors and
engine. What was done to the lab is taken from the record. Of a qualification, the upgrade is
judged by its record, and the rest by the stored inputs. The output says where the verdict
differs from the stored one. Nothing is written.

Exit status: 0 all verdicts are as stored; 1 one is not; 2 bad input; 4 a run cannot be
judged, because its evidence is of an older format.`,
		Args: portable.SomeArgs("the folder of a run, such as reports/node-drain/latest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			worst := framework.Pass
			for _, dir := range args {
				same, err := judgeRun(cmd, dir)
				switch {
				case errors.As(err, new(*verdict.NotJudgeableError)):
					worst = framework.Worst(worst, framework.Inconclusive)
				case err == nil && !same:
					worst = framework.Worst(worst, framework.Fail)
				case err != nil && len(args) == 1:
					return err
				}
				errs = append(errs, err)
			}
			return judgedAs(worst, errors.Join(errs...))
		},
	}
}

func judgeRun(cmd *cobra.Command, dir string) (same bool, err error) {
	if _, err := os.Stat(filepath.Join(dir, qualify.FileJSON)); err == nil {
		return judgeQualification(cmd, dir)
	}
	run, err := readRun(dir)
	if err != nil {
		return false, err
	}
	scenario, err := scenarioNamed(run.Report.Scenario)
	if err != nil {
		return false, err
	}
	switch m, err := report.ReadManifest(run.Dir); {
	case err != nil:
		return false, usagef("%w", err)
	case m != nil && m.Redaction != nil:
		return false, verdict.NotJudgeable(fmt.Errorf("judging %s: its addresses and names were replaced, which cannot be "+
			"undone; judge the run that the archive was made of", dir))
	}
	prepared, err := verdict.Open(run.Dir, run.Report)
	var not *verdict.NotJudgeableError
	if err != nil && !errors.As(err, &not) {
		return false, usagef("%w", err)
	}
	if err != nil {
		return false, err
	}
	if scenario, err = asItRan(scenario, run, prepared); err != nil {
		return false, err
	}
	judged, err := prepared.Judge(scenario)
	if err != nil && !errors.As(err, &not) {
		return false, usagef("judging %s: %w", dir, err)
	}
	if err != nil {
		return false, err
	}
	out := plain.Writer(cmd.OutOrStdout())
	fmt.Fprintf(out, "%s %s: stored %s, judged now %s\n", run.Report.Scenario, run.Report.Run, run.Report.Verdict, judged.Report.Verdict)
	for _, v := range judged.Report.Variants {
		fmt.Fprintf(out, "  %s: %s\n", v.Title(), v.Verdict)
	}
	if judged.Same() {
		fmt.Fprintln(out, "all verdicts and findings are as stored")
		return true, nil
	}
	judged.Differences.PrintJudgements(out)
	fmt.Fprint(out, "\n"+judged.String())
	for _, what := range judged.NotOnRecord {
		fmt.Fprintf(out, "  not recorded, and so not judged: %s\n", what)
	}
	return false, nil
}

func asItRan(scenario framework.Scenario, run merge.Shard, stored verdict.Stored) (framework.Scenario, error) {
	facts, _ := run.Report.Machine.(map[string]any)
	if memory, ok := facts["memory_gib"].(float64); ok {
		scenario = scenario.ForMemory(int(memory))
	}
	var err error
	if run.Report.Topology != nil {
		if scenario, err = scenario.Onto(run.Report.Topology.Subnets()); err != nil {
			return scenario, verdict.NotJudgeable(fmt.Errorf("judging %s: %w", run.Dir, err))
		}
	}
	as, err := withParameters(scenario, stored.Parameters())
	if err != nil {
		return scenario, err
	}
	if as.Variants, err = onTheirLabs(as.Variants, scenario, run.Report, stored.Parameters()); err != nil {
		return scenario, verdict.NotJudgeable(fmt.Errorf("judging %s: %w", run.Dir, err))
	}
	if len(stored.Versions()) == 0 {
		return as, nil
	}
	unclassified, err := as.Unclassified(testedOf(scenario, stored.Versions()))
	if err != nil {
		return scenario, usagef("judging %s: %w", run.Dir, err)
	}
	unclassified.Variants[0].Expect = framework.Verdict(run.Report.Variants[0].Expected) // --expect
	return unclassified, nil
}

// onTheirLabs returns the variants of a scenario. A variant that ran on a second lab gets the networks of that lab.
func onTheirLabs(
	all []framework.Variant, s framework.Scenario, r report.Report, parameters map[string]string,
) ([]framework.Variant, error) {
	all = slices.Clone(all)
	for _, v := range r.Variants {
		if v.Topology == nil {
			continue
		}
		second, err := s.Onto(v.Topology.Subnets())
		if err != nil {
			return nil, err
		}
		if second, err = withParameters(second, parameters); err != nil {
			return nil, err
		}
		for i, on := range second.Variants {
			if on.Name == v.Name {
				all[i] = on
			}
		}
	}
	return all, nil
}

func judgeQualification(cmd *cobra.Command, dir string) (same bool, err error) {
	then, now, err := qualify.Rejudge(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, new(*history.OtherSchemaError)):
		return false, verdict.NotJudgeable(fmt.Errorf("judging %s: %w", dir, err))
	case err != nil:
		return false, usagef("judging %s: %w", dir, err)
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "qualify %s %s to %s: stored %s, judged now %s\n",
		then.Inputs.Component, then.Inputs.From, then.Inputs.To, then.Verdict, now.Verdict)
	stored := map[string]qualify.Row{}
	for _, r := range then.Rows {
		stored[r.Title()] = r
	}
	same = then.Verdict == now.Verdict && len(then.Rows) == len(now.Rows)
	for _, r := range now.Rows {
		if was := stored[r.Title()]; was != r {
			same = false
			fmt.Fprintf(out, "  %s: stored %s, judged now %s: %s\n", r.Title(), was.State, r.State, r.Says)
		}
	}
	if same {
		fmt.Fprintln(out, "the verdict and all rows are as stored")
	}
	return same, nil
}
