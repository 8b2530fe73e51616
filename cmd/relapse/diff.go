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

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/compare"
	"github.com/relapse-dev/relapse/framework/report/merge"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/each"
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
		Args: portable.ExactArgs(2, "the folders of two runs, A and B"),
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

func diffRuns(out io.Writer, a, b merge.Shard) (differ bool, err error) {
	result, err := compare.Reports(a.Report, b.Report)
	if err != nil {
		return false, usagef("%s and %s: %w", a.Dir, b.Dir, err)
	}
	result.Print(out)
	return len(result.Verdicts) > 0, nil
}

func outcomeOfDiff(differ bool, err error) error {
	if err == nil && differ {
		return judgedAs(framework.Fail, nil)
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
	for i, scenario := range each.Once(slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))) {
		if i > 0 {
			fmt.Fprintln(out)
		}
		before, inA := a[scenario]
		now, inB := b[scenario]
		switch {
		case !inA:
			fmt.Fprintf(out, "B only: %s %s: %s\n", scenario, now.Report.Run, now.Report.Verdict)
		case !inB:
			fmt.Fprintf(out, "A only: %s %s: %s\n", scenario, before.Report.Run, before.Report.Verdict)
			changed = append(changed, ownedBy(before.Report))
		default:
			differ, err := diffRuns(out, before, now)
			if err != nil {
				return err
			}
			if differ {
				changed = append(changed, ownedBy(now.Report))
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

// newestRuns returns the newest run of each scenario in a folder, without runs with --ablate.
func newestRuns(dir string) (map[string]merge.Shard, error) {
	all, err := merge.ReadAll(dir)
	if err != nil {
		return nil, usagef("%w", err)
	}
	newest := merge.Newest(slices.DeleteFunc(all, func(run merge.Shard) bool { return run.Report.Ablated != "" }))
	if len(newest) == 0 {
		return nil, usagef("there is no report.json of a complete run in %s, nor in a folder below it", dir)
	}
	return newest, nil
}

// readRun reads the run in a folder. Symbolic links in its Dir are resolved.
func readRun(path string) (merge.Shard, error) {
	dir, err := filepath.EvalSymlinks(path)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return merge.Shard{}, usagef("finding a run: %w", err)
	}
	if filepath.Base(dir) == "report.json" {
		dir = filepath.Dir(dir)
	}
	run, err := merge.Read(dir)
	if err != nil {
		return run, usagef("%w", err)
	}
	return run, nil
}
