package main

import (
	"context"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/adopt"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology"
)

type on struct {
	lab, routers string // lab is a folder or a kubeconfig
	isLab        bool
}

func (o on) check(r *prepared) error {
	switch {
	case o.lab == "" && (o.routers != "" || o.isLab):
		return usagef("--routers and --yes-this-is-a-lab are for --on")
	case o.lab == "":
		return nil
	case len(r.chosen) != 1:
		return usagef("--on: expected one scenario, not %d", len(r.chosen))
	case r.chosen[0].Topology.Dual:
		return usagef("--on excludes --family dual: a lab that is up has the families that it has")
	case r.suite.Keep || r.suite.Reuse || r.how.flags.Changed("subnets") || len(r.suite.Upstreams) > 0:
		return usagef("--on excludes --keep, --reuse, --subnets and --images=upstream: " +
			"the lab stays up as it is, and gets its images from a registry of relapse's")
	}
	return nil
}

func (o on) open(ctx context.Context, chosen []framework.Scenario, s *suite.Options) error {
	if o.lab == "" {
		return nil
	}
	lab, err := adopt.Open(ctx, s.Docker, o.lab, o.routers)
	if err != nil {
		return err
	}
	variants := slices.DeleteFunc(slices.Clone(chosen[0].Variants), func(v framework.Variant) bool {
		return len(s.Variants) > 0 && !slices.Contains(s.Variants, v.Name)
	})
	if err := lab.Check(ctx, chosen[0], variants, o.isLab); err != nil {
		return err
	}
	// The report names what the routers are.
	chosen[0].Topology.Routers = slices.Clone(chosen[0].Topology.Routers)
	for i := range chosen[0].Topology.Routers {
		chosen[0].Topology.Routers[i].Kind = topology.FRR
	}
	s.Adopted = &lab.Foreign
	return nil
}
