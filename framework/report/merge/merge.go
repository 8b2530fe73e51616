// Package merge makes one folder of the runs of several processes or machines, with one run of each
// scenario.
package merge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
)

// Shard is a stored run.
type Shard struct {
	Dir    string
	Report report.Report
}

// Read reads the run of a folder. A folder that holds what no run writes is an error.
func Read(dir string) (Shard, error) {
	if err := rundir.Check(dir); err != nil {
		return Shard{}, err
	}
	r, err := report.Read(filepath.Join(dir, "report.json"))
	return Shard{dir, r}, err
}

// ReadAll reads the runs in a folder and below it, in order of their paths.
func ReadAll(dir string) (all []Shard, err error) {
	runs, err := page.Runs(dir)
	for _, run := range runs {
		one, readErr := Read(run)
		if readErr != nil {
			return nil, readErr
		}
		all = append(all, one)
	}
	return all, err
}

// Newest returns the newest run of each scenario, by its name.
func Newest(all []Shard) map[string]Shard {
	newest := map[string]Shard{}
	for _, s := range all {
		if last, there := newest[s.Report.Scenario]; !there || s.Report.Started.After(last.Report.Started) {
			newest[s.Report.Scenario] = s
		}
	}
	return newest
}

// Find reads the shards below some folders: the newest run of each scenario in each folder. Older
// is how many older runs were left out. Empty are the folders without a run, or that do not exist.
func Find(dirs ...string) (shards []Shard, older int, empty []string, err error) {
	for _, dir := range dirs {
		all, err := ReadAll(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, 0, nil, err
		}
		if len(all) == 0 {
			empty = append(empty, dir)
			continue
		}
		newest := slices.SortedFunc(maps.Values(Newest(all)), func(a, b Shard) int { return cmp.Compare(a.Dir, b.Dir) })
		shards, older = append(shards, newest...), older+len(all)-len(newest)
	}
	return shards, older, empty, nil
}

// Missing stands for the scenarios that were expected and have no report: an
// inconclusive report of each, in order of name.
func Missing(expected []string, reports []report.Report) []report.Report {
	var missing []report.Report
	for _, name := range each.Once(expected) {
		if !slices.ContainsFunc(reports, func(r report.Report) bool { return r.Scenario == name }) {
			missing = append(missing, report.Report{
				Scenario: name, Verdict: string(framework.Inconclusive),
				Merged: &report.Merged{Conflicts: []string{"no shard has a report of it"}},
			})
		}
	}
	return missing
}

// ByScenario groups shards by scenario, in order of its name. In a group the worst verdict comes first, and of
// equal verdicts the newest run. Shards of different ablations are an error.
func ByScenario(shards []Shard) ([][]Shard, error) {
	parts := map[string][]Shard{}
	for _, s := range shards {
		group := parts[s.Report.Scenario]
		if len(group) > 0 && group[0].Report.Ablated != s.Report.Ablated {
			return nil, fmt.Errorf("%s is without %q, and %s without %q: they are not parts of one run",
				group[0].Dir, group[0].Report.Ablated, s.Dir, s.Report.Ablated)
		}
		parts[s.Report.Scenario] = append(group, s)
	}
	return each.Of(slices.Sorted(maps.Keys(parts)), func(scenario string) []Shard {
		slices.SortStableFunc(parts[scenario], func(a, b Shard) int {
			switch va, vb := a.verdict(), b.verdict(); {
			case va == vb:
				return b.Report.Started.Compare(a.Report.Started)
			case framework.Worst(va, vb) == va:
				return -1
			}
			return 1
		})
		return parts[scenario]
	}), nil
}

// verdict is the verdict of a run. One that has not ended is inconclusive at best.
func (s Shard) verdict() framework.RunVerdict {
	verdict := framework.RunVerdict(s.Report.Verdict)
	if s.Report.Unfinished != nil {
		verdict = framework.Worst(verdict, framework.Inconclusive)
	}
	return verdict
}

// Write copies the first shard of a scenario to a new run below output, and returns its folder. The report
// lists contradictions: a shard has not ended, there are other shards, or the run lacks one of these variants. Another
// shard with another verdict makes a passed run inconclusive, and so does any contradiction if variants are given.
func Write(output string, shards []Shard, variants ...string) (dir string, merged report.Report, err error) {
	first := shards[0]
	merged = first.Report
	merged.Merged = &report.Merged{}
	verdict := first.verdict()
	conflict := func(format string, args ...any) {
		merged.Merged.Conflicts = append(merged.Merged.Conflicts, fmt.Sprintf(format, args...))
	}
	for i, s := range shards {
		merged.Merged.Runs = append(merged.Merged.Runs, s.Dir)
		if s.Report.Unfinished != nil {
			conflict("%s has not ended; running steps: %s", s.Dir, strings.Join(s.Report.Unfinished.Steps, ", "))
		}
		if i > 0 {
			conflict("it ran twice: %s in %s, and %s in %s, which is left out", first.Report.Verdict, first.Dir, s.Report.Verdict, s.Dir)
		}
		if s.verdict() != first.verdict() {
			verdict = framework.Worst(verdict, framework.Inconclusive)
		}
	}
	for _, name := range variants {
		if !slices.ContainsFunc(merged.Variants, func(v report.Variant) bool { return v.Name == name }) &&
			!slices.ContainsFunc(merged.NotRun, func(v report.NotRun) bool { return v.Name == name }) {
			conflict("no shard has variant %s", name)
		}
	}
	if len(variants) > 0 && len(merged.Merged.Conflicts) > 0 {
		verdict = framework.Worst(verdict, framework.Inconclusive)
	}
	merged.Verdict = string(verdict)
	if dir, err = report.NewRun(output, merged.Scenario, merged.Started); err != nil {
		return "", merged, err
	}
	merged.Run = filepath.Base(dir)
	if err := copyEvidence(dir, first.Dir); err != nil {
		return "", merged, err
	}
	if err := errors.Join(merged.Write(dir), page.Write(dir, nil), junit.Write(junit.InFolder(dir), merged)); err != nil {
		return "", merged, err
	}
	return dir, merged, report.SetLatest(dir)
}

func copyEvidence(to, from string) error {
	target, err := rundir.Open(to)
	if err != nil {
		return fmt.Errorf("copying evidence: %w", err)
	}
	defer target.Close()
	source, err := rundir.Open(from)
	if err != nil {
		return fmt.Errorf("copying evidence: %w", err)
	}
	defer source.Close()
	if err := target.Copy("evidence", source, "evidence"); err != nil {
		return fmt.Errorf("copying the evidence of %s: %w", from, err)
	}
	return nil
}
