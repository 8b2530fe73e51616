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
)

// like is the value of --like: a bundle of a cluster that a lab is to be like; empty: not given.
type like string

func (l *like) register(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar((*string)(l), "like", "", what+" of the cluster that a bundle is of (see audit --from), `BUNDLE`")
}

// into are the versions of the bundle besides those that were chosen, and its families if none were.
func (l like) into(chosen []framework.Scenario, with map[string]string, of family, tell io.Writer) (map[string]string, family, error) {
	if l == "" {
		return with, of, nil
	}
	var components []string
	for _, s := range chosen {
		for _, t := range s.Tested {
			components = append(components, t.Component())
		}
	}
	slices.Sort(components)
	components = slices.Compact(components)
	versions, dual, err := qualify.InBundle(string(l), components...)
	if err != nil {
		return nil, "", usagef("--like: %w", err)
	}
	if len(versions) == 0 {
		return nil, "", usagef("--like: the bundle has no pods of %s whose version is known", strings.Join(components, ", "))
	}
	says := fmt.Sprintf("like %s: ", l)
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		says += name + " " + versions[name] + ", "
	}
	maps.Copy(versions, with)
	switch can := !slices.ContainsFunc(chosen, func(s framework.Scenario) bool { return !slices.Contains(s.Parameters, framework.Family) }); {
	case dual && of == "" && can:
		of, says = framework.Dual, says+"two address families"
	case dual && of == "":
		says += "IPv4 alone, where the bundle has IPv6 as well"
	default:
		says += "IPv4"
	}
	_, err = fmt.Fprintln(plain.Writer(tell), says)
	return versions, of, err
}
