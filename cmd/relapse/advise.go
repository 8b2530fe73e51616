package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/scenarios"
)

func adviseCommand() *cobra.Command {
	cmd := portable.Advise()
	cmd.AddCommand(&cobra.Command{
		Use:   "merge FILE DIR...",
		Short: "Add the results of qualifications and bisections in folders of reports to a file",
		Args: func(cmd *cobra.Command, args []string) error {
			return portable.SomeArgs("a file of results, and the folders of reports")(cmd, args[min(len(args), 1):])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return mergeResults(cmd.OutOrStdout(), args[0], args[1:])
		},
	})
	return cmd
}

func mergeResults(out io.Writer, file string, dirs []string) error {
	all, err := portable.ReadResults(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usagef("merging: %w", err)
	}
	before, found := len(all), 0
	for _, dir := range dirs {
		more, err := qualify.Collect(dir, scenarios.All)
		if err != nil {
			return usagef("merging: %w", err)
		}
		all, found = advise.Merge(all, more...), found+len(more)
	}
	if found == 0 {
		return usagef("merging: no qualification or bisection with a result is in %s", strings.Join(dirs, ", "))
	}
	var text bytes.Buffer
	if err := portable.WriteResults(&text, all); err != nil {
		return err
	}
	if err := rundir.Replace(file, text.Bytes()); err != nil {
		return usagef("merging: %w", err)
	}
	fmt.Fprintf(out, "%s: %d results, %d more than before\n", file, len(all), len(all)-before)
	return nil
}
