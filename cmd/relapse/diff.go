package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/framework/report/rundir"
)

func diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the reports of two runs, or of two nights",
		Long: `Diff prints how two runs differ: in the conditions under which they ran, in verdicts, in
findings, and in times. A and B are folders of runs, such as reports/node-drain/latest,
or folders that contain runs, as merge writes them: then the newest complete run of
each scenario is compared.

Exit status: 0 the verdicts are the same; 1 a verdict of the run, of a variant, a
remedy or a check differs, or B lacks a scenario of A; 2 bad input.`,
		Args: exactArgs(2, "the folders of two runs, A and B"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if holdsRuns(args[0]) && holdsRuns(args[1]) {
				return diffNights(plain.Writer(cmd.OutOrStdout()), args[0], args[1])
			}
			a, err := readRun(args[0])
			if err != nil {
				return err
			}
			b, err := readRun(args[1])
			if err != nil {
				return err
			}
			return outcomeOfDiff(diffRuns(plain.Writer(cmd.OutOrStdout()), a, b))
		},
	}
}

func diffRuns(out io.Writer, a, b storedRun) (differ bool, err error) {
	result, err := compare.Reports(a.report, b.report)
	if err != nil {
		return false, usagef("%s and %s: %w", a.dir, b.dir, err)
	}
	result.Print(out)
	return len(result.Verdicts) > 0, nil
}

func outcomeOfDiff(differ bool, err error) error {
	if err == nil && differ {
		return &verdictError{verdict: framework.Fail}
	}
	return err
}

func holdsRuns(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, "report.json"))
	return errors.Is(err, fs.ErrNotExist)
}

func diffNights(out io.Writer, one, other string) error {
	a, err := newestRuns(one)
	if err != nil {
		return err
	}
	b, err := newestRuns(other)
	if err != nil {
		return err
	}
	var changed []string // names of scenarios, with their owners
	first := true
	for _, scenario := range slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))))) {
		if !first {
			fmt.Fprintln(out)
		}
		first = false
		before, inA := a[scenario]
		now, inB := b[scenario]
		switch {
		case !inA:
			fmt.Fprintf(out, "B only: %s %s: %s\n", scenario, now.report.Run, now.report.Verdict)
		case !inB:
			fmt.Fprintf(out, "A only: %s %s: %s\n", scenario, before.report.Run, before.report.Verdict)
			changed = append(changed, ownedBy(before.report))
		default:
			differ, err := diffRuns(out, before, now)
			if err != nil {
				return err
			}
			if differ {
				changed = append(changed, ownedBy(now.report))
			}
		}
	}
	if len(changed) == 0 {
		fmt.Fprintln(out, "\nno verdict differs")
		return nil
	}
	fmt.Fprintf(out, "\nverdicts differ: %s\n", strings.Join(changed, ", "))
	return outcomeOfDiff(true, nil)
}

func ownedBy(r report.Report) string {
	if r.Owner == "" {
		return r.Scenario
	}
	return fmt.Sprintf("%s (%s)", r.Scenario, r.Owner)
}

// newestRuns are the newest runs of each scenario in a folder, without runs with --ablate.
func newestRuns(dir string) (map[string]storedRun, error) {
	dirs, err := page.Runs(dir)
	if err != nil {
		return nil, err
	}
	newest := map[string]storedRun{}
	for _, path := range dirs {
		run, err := readRun(path)
		if err != nil {
			return nil, err
		}
		last, there := newest[run.report.Scenario]
		if run.report.Ablated == "" && (!there || run.report.Started.After(last.report.Started)) {
			newest[run.report.Scenario] = run
		}
	}
	if len(newest) == 0 {
		return nil, usagef("there is no report.json of a complete run in %s, nor in a folder below it", dir)
	}
	return newest, nil
}

type storedRun struct {
	dir    string // without links
	report report.Report
}

func readRun(path string) (storedRun, error) {
	dir, err := filepath.EvalSymlinks(path)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return storedRun{}, usagef("finding a run: %w", err)
	}
	if filepath.Base(dir) == "report.json" {
		dir = filepath.Dir(dir)
	}
	r, err := report.Read(filepath.Join(dir, "report.json"))
	if err == nil {
		err = rundir.Check(dir)
	}
	if err != nil {
		return storedRun{}, usagef("%w", err)
	}
	return storedRun{dir, r}, nil
}
