package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report/plain"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// like is the value of --like: a bundle of a cluster that a lab is to be like; empty: not given.
type like string

func (l *like) register(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar((*string)(l), "like", "", what+" of the cluster that a bundle is of (see audit --from), `BUNDLE`")
}

// versions are those of the bundle that the only chosen scenario tests, where none was chosen.
func (l like) versions(chosen []framework.Scenario, with map[string]string, tell io.Writer) (map[string]string, error) {
	if l == "" {
		return with, nil
	}
	if len(chosen) != 1 {
		return nil, usagef("--like: expected one scenario, and not %d", len(chosen))
	}
	components := each.Of(chosen[0].Tested, framework.Tested.Component)
	slices.Sort(components)
	components = slices.Compact(components)
	versions, _, err := qualify.InBundle(string(l), components...)
	if err != nil {
		return nil, usagef("--like: %w", err)
	}
	maps.Copy(versions, with)
	if len(versions) == 0 {
		return nil, usagef("--like: the bundle does not state one version of %s", strings.Join(components, ", nor of "))
	}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		fmt.Fprintf(plain.Writer(tell), "like the bundle: %s %s\n", name, versions[name])
	}
	return versions, nil
}

// family is that of the bundle, if none was chosen and the scenario has labs of it.
func (l like) family(s framework.Scenario, chosen family, tell io.Writer) (family, error) {
	if l == "" || chosen != "" {
		return chosen, nil
	}
	_, families, err := qualify.InBundle(string(l))
	if err != nil {
		return "", usagef("--like: %w", err)
	}
	says := "the lab has IPv4 alone"
	switch {
	case len(families) == 2 && slices.Contains(s.Parameters, framework.Family):
		chosen, says = framework.Dual, "the lab has both"
	case slices.Equal(families, []topology.Family{topology.IPv4}):
		says = "as the lab"
	}
	of := each.Joined(families, " and ", func(f topology.Family) string { return string(f) })
	if of == "" {
		of = "not known"
	}
	fmt.Fprintf(plain.Writer(tell), "address families of the bundle: %s; %s\n", of, says)
	return chosen, nil
}
