package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/report/page"
)

func pageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "page DIR...",
		Short: "Render the page of stored runs, and an index where there are several",
		Long: `Page renders report.html anew in each run's folder, from its report.json and the
evidence beside it. Of a folder in which there are runs it renders all of them,
and writes index.html there: which incident came with which version, the last
runs of each scenario, and what has changed since the last but one.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("page needs the folder of a run, or one with runs in it, such as reports")
			}
			return nil
		},
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

// renderPages renders the pages of a run, or of all runs below a folder.
func renderPages(cmd *cobra.Command, dir string) error {
	runs, err := page.Runs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%w", err)
	}
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return usagef("there is no report.json in %s, nor in a folder below it", dir)
	}
	for _, run := range runs {
		if err := page.Write(run); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(run, page.Name))
	}
	if len(runs) == 1 && runs[0] == filepath.Clean(dir) {
		return nil
	}
	if err := page.WriteIndex(dir, runs); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, page.IndexName))
	return nil
}
