package main

import (
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// subnets is the value of --subnets: a prefix; empty: labs have the documented subnets.
type subnets string

func (s *subnets) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(s), "subnets", "",
		"move the lab's networks on this machine into `PREFIX`, as in 10.200.0.0/16; pod and Service ranges stay")
}

func (s subnets) prefix() (netip.Prefix, error) {
	if s == "" {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(string(s))
	if err != nil {
		return prefix, usagef("--subnets: %q is not a prefix: expected one such as 10.200.0.0/16", string(s))
	}
	return prefix, nil
}

// move moves the networks of each scenario's lab into a part of the prefix, so that the labs
// can exist at the same time.
func (s subnets) move(chosen []framework.Scenario) error {
	prefix, err := s.prefix()
	if err != nil || s == "" {
		return err
	}
	parts, err := topology.Split(prefix, each.Of(chosen, topologyOf)...)
	if err != nil {
		return usagef("--subnets: %w", err)
	}
	for i := range chosen {
		if chosen[i], err = chosen[i].Within(parts[i]); err != nil {
			return usagef("--subnets: %w", err)
		}
	}
	return nil
}

func (s subnets) one(name string, set map[string]string) (framework.Scenario, error) {
	scenario, err := scenarioNamed(name)
	if err != nil {
		return scenario, err
	}
	one := []framework.Scenario{scenario}
	if err = s.move(one); err == nil {
		err = setParameters(one, set)
	}
	return one[0], err
}
