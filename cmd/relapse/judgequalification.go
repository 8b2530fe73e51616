package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/verdict"
)

func isQualification(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, qualify.FileJSON))
	return err == nil
}

// judgeQualification judges a stored qualification again. Same reports whether it is as stored.
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
