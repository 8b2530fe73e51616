package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/scenarios"
)

// family is the value of --family, the parameter framework.Family of each chosen scenario; empty: not given.
type family string

func (f *family) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(f), "family", "",
		"the address families of the lab, `FAMILY`: ipv4, or dual, where traffic and findings of IPv6 stand beside those of IPv4")
}

// into are the parameters with the family.
func (f family) into(set map[string]string, chosen ...framework.Scenario) (map[string]string, error) {
	if f == "" {
		return set, nil
	}
	if given, twice := set[framework.Family.Name]; twice && given != string(f) {
		return nil, usagef("--family=%s and --set %s=%s: give one of them", f, framework.Family.Name, given)
	}
	has := func(s framework.Scenario) bool { return slices.Contains(s.Parameters, framework.Family) }
	for _, s := range chosen {
		if has(s) || string(f) == framework.Family.Default {
			continue
		}
		var can []string
		for _, other := range scenarios.All {
			if has(other) {
				can = append(can, other.Incident.Name)
			}
		}
		return nil, usagef("--family: the lab of %s is of IPv4 alone: expected %s", s.Incident.Name, strings.Join(can, ", "))
	}
	with := maps.Clone(set)
	if with == nil {
		with = map[string]string{}
	}
	if slices.ContainsFunc(chosen, has) {
		with[framework.Family.Name] = string(f)
	}
	return with, nil
}
