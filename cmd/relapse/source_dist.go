//go:build dist

package main

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
)

// packedSource is the source of the commit that this program is built from. The script .ci/dist writes the file.
//
//go:embed source.zip
var packedSource []byte

func distCommands() []*cobra.Command {
	return []*cobra.Command{{
		Use:    "man DIR",
		Short:  "Write the manual pages to a folder",
		Hidden: true,
		Args:   portable.ExactArgs(1, "a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			commit, _ := portable.BuiltFrom()
			date, err := time.Parse(time.RFC3339, commit.Time)
			if err != nil {
				return fmt.Errorf("the time of this program's commit: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it has the date of today
			return doc.GenManTree(root, &doc.GenManHeader{Source: "relapse", Manual: "relapse", Date: &date}, args[0])
		},
	}}
}
