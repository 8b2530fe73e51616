package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// like is the value of --like: a bundle of a cluster that a lab is to be like; empty: not given.
type like string

func (l *like) register(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar((*string)(l), "like", "", what+" of the cluster that a bundle is of (see audit --from), `BUNDLE`")
}

// of chooses what nobody has chosen as the bundle has it: versions of components that the scenario tests, and the
// families of its lab.
func (l like) of(s framework.Scenario, with map[string]string, chosen family, tell io.Writer) (map[string]string, family, error) {
	versions, families, err := qualify.InBundle(string(l), each.Of(s.Tested, framework.Tested.Component)...)
	if err != nil {
		return nil, "", usagef("--like: %w", err)
	}
	maps.Copy(versions, with)
	both := len(families) == 2 && slices.Contains(s.Parameters, framework.Family)
	if both && chosen == "" {
		chosen = framework.Dual
	}
	says := each.Of(slices.Sorted(maps.Keys(versions)), func(name string) string { return name + " " + versions[name] })
	of := each.Joined(families, " and ", func(f topology.Family) string { return string(f) })
	if of == "" {
		of = "not known"
	}
	says = append(says, fmt.Sprintf("address families %s (the lab: %s)", of, cmp.Or(string(chosen), string(topology.IPv4))))
	fmt.Fprintf(tell, "%s: %s\n", l, strings.Join(says, ", "))
	return versions, chosen, nil
}
