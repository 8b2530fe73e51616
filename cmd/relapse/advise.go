package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/scenarios"
)

const adviseHelp = `Advise says which incidents of the catalogue an upgrade has, whether your values rule them
out, and which run has shown that. It runs nothing, takes no time, and needs neither root nor
a checkout. It never says GO: it says what is known, and what was never run.

With -o json it prints the results that the advice rests on, one a line.`

func adviseCommand() *cobra.Command {
	var o qualifyOptions
	var file, format string
	cmd := &cobra.Command{
		Use:     "advise COMPONENT FROM TO",
		Short:   "Say what is known of an upgrade, without a run",
		Long:    adviseHelp,
		Example: "  relapse advise cilium 1.18.6 1.19.3 --values values.yaml",
		Args:    portable.ExactArgs(3, "the name of a component and two versions, such as cilium 1.18.6 1.19.3"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return usagef("-o %q: expected text or json", format)
			}
			if err := checkVersions(args[1], args[2]); err != nil {
				return err
			}
			known, err := knownResults(file)
			if err != nil {
				return err
			}
			given, _, err := o.givenValues(args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var values *qualify.Given
			if len(o.values) > 0 {
				if err := qualify.CheckValues(args[0], args[1], args[2]); err != nil {
					return usagef("--values: %w", err)
				}
				values = &given
			}
			advice, err := qualify.Advise(scenarios.All, known, args[0], args[1], args[2], values)
			if err != nil {
				return usagef("%w", err)
			}
			if format == "json" {
				return writeResults(cmd.OutOrStdout(), advice.Lines())
			}
			advice.Write(cmd.OutOrStdout())
			return nil
		},
	}
	o.registerValues(cmd.Flags())
	cmd.Flags().StringVar(&file, "known", "", "results of your own besides, a `FILE` that advise merge writes")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "`FORMAT`: text or json")
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

// knownResults are the results that relapse has, and those of the user's file.
func knownResults(file string) ([]qualify.Known, error) {
	recorded, err := qualify.Recorded()
	if err != nil || file == "" {
		return recorded, err
	}
	own, err := readResults(file)
	if err != nil {
		return nil, usagef("--known: %w", err)
	}
	return qualify.Merge(recorded, own...), nil
}

func readResults(file string) ([]qualify.Known, error) {
	text, err := rundir.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := qualify.ReadKnown(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

func mergeResults(out io.Writer, file string, dirs []string) error {
	all, err := readResults(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return usagef("merging: %w", err)
	}
	before, found := len(all), 0
	for _, dir := range dirs {
		more, err := qualify.Collect(dir, scenarios.All)
		if err != nil {
			return usagef("merging: %w", err)
		}
		all, found = qualify.Merge(all, more...), found+len(more)
	}
	if found == 0 {
		return usagef("merging: no qualification or bisection with a result is in %s", strings.Join(dirs, ", "))
	}
	var text bytes.Buffer
	if err := writeResults(&text, all); err != nil {
		return err
	}
	if err := rundir.Replace(file, text.Bytes()); err != nil {
		return usagef("merging: %w", err)
	}
	fmt.Fprintf(out, "%s: %d results, %d more than before\n", file, len(all), len(all)-before)
	return nil
}

func writeResults(out io.Writer, all []qualify.Known) error {
	lines := json.NewEncoder(out)
	for _, k := range all {
		if err := lines.Encode(k); err != nil {
			return err
		}
	}
	return nil
}
