package portable

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/report/merge"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology/status"
)

// Page is the command page.
func Page() *cobra.Command {
	return &cobra.Command{
		Use:   "page DIR...",
		Short: "Render the page of stored runs, and an index if there are several",
		Long: `Page renders report.html in each run's folder again, from its report.json and its
evidence. For a folder that contains runs it renders all of them, and writes index.html
there: which incident occurred with which version, the latest runs of each scenario, and
what changed since the run before.`,
		Args: SomeArgs("the folder of a run, or one with runs in it, such as reports"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, dir := range args {
				if err := renderPages(cmd, dir); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func renderPages(cmd *cobra.Command, dir string) error {
	all, err := merge.ReadAll(dir) // before anything is written
	if err != nil {
		return status.Input("%w", err)
	}
	if len(all) == 0 {
		return status.Input("there is no report.json in %s, nor in a folder below it", dir)
	}
	var runs []string
	for _, run := range all {
		if err := page.Write(run.Dir, nil); err != nil {
			return err
		}
		fmt.Fprintln(plain.Writer(cmd.OutOrStdout()), filepath.Join(run.Dir, page.Name))
		runs = append(runs, run.Dir)
	}
	if len(runs) == 1 && runs[0] == filepath.Clean(dir) {
		return nil
	}
	if err := page.WriteIndex(dir, runs); err != nil {
		return err
	}
	fmt.Fprintln(plain.Writer(cmd.OutOrStdout()), filepath.Join(dir, page.IndexName))
	return nil
}
