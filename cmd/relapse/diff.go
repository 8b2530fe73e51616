package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/framework/report/page"
)

func diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the reports of two runs of a scenario",
		Long: `Diff tells in what two runs differ: verdicts, findings, and times as far as they
differ by more than earlier runs did. A and B are folders of runs, as in
reports/node-drain/latest. The earlier runs are those that are stored beside them,
of the same machine, and not slowed down by other work; three it takes.

Exit status: 0 the verdicts are the same; 1 a verdict of the run, of a variant, a
remedy or a check differs; 2 bad input.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("diff takes the folders of two runs, A and B")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := readRun(args[0])
			if err != nil {
				return err
			}
			b, err := readRun(args[1])
			if err != nil {
				return err
			}
			earlier, err := earlierRuns(a, b)
			if err != nil {
				return err
			}
			result, err := compare.Reports(a.report, b.report, earlier)
			if err != nil {
				return usagef("%s and %s: %w", args[0], args[1], err)
			}
			result.Print(cmd.OutOrStdout())
			if len(result.Verdicts) > 0 {
				return &verdictError{verdict: framework.Fail}
			}
			return nil
		},
	}
}

// storedRun is a run that was read from its folder.
type storedRun struct {
	dir    string // without links
	report report.Report
}

// readRun reads the report of a run by its folder or its report.json.
func readRun(path string) (storedRun, error) {
	dir, err := filepath.EvalSymlinks(path)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return storedRun{}, usagef("looking for a run: %w", err)
	}
	if filepath.Base(dir) == "report.json" {
		dir = filepath.Dir(dir)
	}
	r, err := report.Read(filepath.Join(dir, "report.json"))
	if err != nil {
		return storedRun{}, usagef("%w", err)
	}
	return storedRun{dir, r}, nil
}

// earlierRuns are the reports of what is stored beside two runs and began before the
// later of them.
func earlierRuns(a, b storedRun) ([]report.Report, error) {
	last := a.report.Started
	if b.report.Started.After(last) {
		last = b.report.Started
	}
	seen := map[string]bool{a.dir: true, b.dir: true}
	var earlier []report.Report
	for _, run := range []storedRun{a, b} {
		dirs, err := page.Runs(filepath.Dir(run.dir))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if seen[dir] {
				continue
			}
			seen[dir] = true
			// One that cannot be read, such as of an older schema, is no noise.
			if r, err := report.Read(filepath.Join(dir, "report.json")); err == nil && r.Started.Before(last) {
				earlier = append(earlier, r)
			}
		}
	}
	return earlier, nil
}
