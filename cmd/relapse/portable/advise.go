package portable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/status"
)

const adviseHelp = `Advise says which incidents of the catalogue an upgrade has, whether your values rule them
out, and which run has shown that. It runs nothing, takes no time, and needs neither root nor
a checkout. It never says GO: it says what is known, and what was never run.

With -o json it prints the results that the advice rests on, one a line.`

// Advise is the command advise.
func Advise() *cobra.Command {
	var v Values
	var file, format string
	cmd := &cobra.Command{
		Use:     "advise COMPONENT FROM TO",
		Short:   "Say what is known of an upgrade, without a run",
		Long:    adviseHelp,
		Example: "  relapse advise cilium 1.18.6 1.19.3 --values values.yaml",
		Args:    ExactArgs(3, "the name of a component and two versions, such as cilium 1.18.6 1.19.3"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return status.Input("-o %q: expected text or json", format)
			}
			if err := CheckVersions(args[1], args[2]); err != nil {
				return err
			}
			results, err := Results(file)
			if err != nil {
				return err
			}
			given, err := v.Given(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			var values *releasefile.Given
			if len(v.Files) > 0 {
				if err := advise.CheckValues(args[0], args[1], args[2]); err != nil {
					return status.Input("--values: %w", err)
				}
				values = &given
			}
			advice, err := advise.Advise(Subjects(), results, args[0], args[1], args[2], values)
			if err != nil {
				return status.Input("%w", err)
			}
			if format == "json" {
				return WriteResults(cmd.OutOrStdout(), advice.Lines())
			}
			advice.Write(cmd.OutOrStdout())
			return nil
		},
	}
	v.Register(cmd.Flags())
	cmd.Flags().StringVar(&file, "known", "", "results of your own besides, a `FILE` that advise merge writes")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "`FORMAT`: text or json")
	return cmd
}

// Subjects are the incidents of the catalogue, as advice needs them.
func Subjects() []advise.Subject {
	return each.Of(Incidents(), func(i Incident) advise.Subject { return i.Subject })
}

// Results returns the embedded results, and the results in the user's file.
func Results(file string) ([]advise.Known, error) {
	recorded, err := advise.Recorded()
	if err != nil || file == "" {
		return recorded, err
	}
	own, err := ReadResults(file)
	if err != nil {
		return nil, status.Input("--known: %w", err)
	}
	return advise.Merge(recorded, own...), nil
}

// ReadResults reads a file of results.
func ReadResults(file string) ([]advise.Known, error) {
	text, err := rundir.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := advise.ReadKnown(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// WriteResults writes results as a file has them.
func WriteResults(out io.Writer, all []advise.Known) error {
	lines := json.NewEncoder(out)
	for _, k := range all {
		if err := lines.Encode(k); err != nil {
			return err
		}
	}
	return nil
}
