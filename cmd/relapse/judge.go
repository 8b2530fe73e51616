package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report/archive"
)

func judgeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "judge DIR...",
		Short: "Judge stored runs with today's engine and detectors",
		Long: `Judge judges stored runs again, from their evidence alone: today's detectors look
at each snapshot that the run's detectors have looked at, and the steps of today's
engine go through that and through what became of each packet. What was done to
the lab, and what checks have seen that do not ask detectors, is taken as it was.
A run that "relapse archive --redact" has packed is judged by the names that the
scenario has for its own.
It says where the verdict differs from the one that is stored, and in which look
detectors find something else. Nothing is written.

Exit status: 0 all is judged as it was; 1 something is not; 2 bad input; 4 a run
cannot be judged, for its evidence is of before runs kept what that takes.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("judge needs the folder of a run, such as reports/node-drain/latest")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			verdict := framework.Pass
			for _, dir := range args {
				same, err := judgeRun(cmd, dir)
				var not *engine.NotJudgeableError
				switch {
				case errors.As(err, &not):
					verdict = framework.Worst(verdict, framework.Inconclusive)
				case err == nil && !same:
					verdict = framework.Worst(verdict, framework.Fail)
				case err != nil && len(args) == 1:
					return err
				}
				errs = append(errs, err)
			}
			if broken := errors.Join(errs...); broken != nil || verdict != framework.Pass {
				return &verdictError{verdict, broken}
			}
			return nil
		},
	}
}

// judgeRun judges a stored run again and tells of it. Same is whether all is judged
// as it was.
func judgeRun(cmd *cobra.Command, dir string) (same bool, err error) {
	run, err := readRun(dir)
	if err != nil {
		return false, err
	}
	scenario, err := scenarioNamed(run.report.Scenario)
	if err != nil {
		return false, err
	}
	run, restore, err := restored(run, scenario)
	var changed *archive.ScenarioChangedError
	if errors.As(err, &changed) {
		return false, engine.NotJudgeable(fmt.Errorf("judging %s: %w", dir, err))
	}
	if err != nil {
		return false, err
	}
	prepared, err := engine.Open(run.dir, run.report, restore)
	var not *engine.NotJudgeableError
	if err != nil && !errors.As(err, &not) {
		return false, usagef("%w", err)
	}
	if err != nil {
		return false, err
	}
	if facts, known := run.report.Machine.(map[string]any); known {
		if memory, known := facts["memory_gib"].(float64); known {
			scenario = scenario.On(int(memory))
		}
	}
	one := []framework.Scenario{scenario}
	if err := setParameters(one, ofScenario(scenario, prepared.Parameters())); err != nil {
		return false, err
	}
	if versions := prepared.Versions(); len(versions) > 0 {
		known := map[string]string{} // of several scenarios' versions those of this one
		for name, version := range versions {
			if _, there := scenario.Find(name); there {
				known[name] = version
			}
		}
		if one[0], err = one[0].Unclassified(known); err != nil {
			return false, usagef("judging %s: %w", dir, err)
		}
	}
	judged, err := prepared.Judge(one[0])
	if err != nil {
		return false, err
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s %s: stored %s, judged today %s\n", run.report.Scenario, run.report.Run, run.report.Verdict, judged.Report.Verdict)
	for _, v := range judged.Report.Variants {
		fmt.Fprintf(out, "  %s: %s\n", titleOf(v), v.Verdict)
	}
	if judged.Same() {
		fmt.Fprintln(out, "all is as it was judged then")
		return true, nil
	}
	judged.Differences.PrintJudgements(out)
	fmt.Fprint(out, "\n"+judged.String())
	for _, what := range judged.NotOnRecord {
		fmt.Fprintf(out, "  not on record, so that it could not be judged: %s\n", what)
	}
	return false, nil
}

// ofScenario are those of some parameters that a scenario has.
func ofScenario(s framework.Scenario, all map[string]string) map[string]string {
	values := map[string]string{}
	for _, p := range s.Parameters {
		if value, given := all[p.Name]; given {
			values[p.Name] = value
		}
	}
	return values
}
