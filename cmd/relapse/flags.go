package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/adopt"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// family is the value of --family, the parameter framework.Family of each chosen scenario; empty: not given.
type family string

func (f *family) register(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(f), "family", "",
		"the address families of the lab, `FAMILY`: ipv4, or dual, where traffic and findings of IPv6 stand beside those of IPv4")
}

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
		can := each.Joined(each.Where(scenarios.All, has), ", ", nameOf)
		return nil, usagef("--family: the lab of %s is of IPv4 alone: expected %s", s.Incident.Name, can)
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

// like is the value of --like: a bundle of a cluster that a lab resembles; empty: not given.
type like string

func (l *like) register(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar((*string)(l), "like", "", what+" of the cluster that a bundle is of (see audit --from), `BUNDLE`")
}

// choose takes from the bundle what the user has not chosen: the versions of components that the scenario tests, and
// the address families of its lab.
func (l like) choose(s framework.Scenario, with map[string]string, chosen family, tell io.Writer) (map[string]string, family, error) {
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
	names := each.Joined(families, " and ", func(f topology.Family) string { return string(f) })
	if names == "" {
		names = "not known"
	}
	says = append(says, fmt.Sprintf("address families %s (the lab: %s)", names, cmp.Or(string(chosen), string(topology.IPv4))))
	fmt.Fprintf(tell, "%s: %s\n", l, strings.Join(says, ", "))
	return versions, chosen, nil
}

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
	// The report names the routers' programs.
	chosen[0].Topology.Routers = slices.Clone(chosen[0].Topology.Routers)
	for i := range chosen[0].Topology.Routers {
		chosen[0].Topology.Routers[i].Kind = topology.FRR
	}
	s.Adopted = &lab.Foreign
	return nil
}

// Sources of the vendors' images: the values of --images.
const (
	imagesBuild    = "build"
	imagesUpstream = "upstream"
)

type origin struct {
	source  string
	mirrors map[string]string // of vendors' registries, by the registry's host
}

func (o *origin) register(flags *pflag.FlagSet) {
	flags.StringVar(&o.source, "images", imagesBuild,
		"where the vendors' images come from: build; or upstream, which takes all through a cache in the lab")
	flags.StringToStringVar(&o.mirrors, "upstream", nil, "with --images=upstream: a mirror for a vendor's registry, `HOST=URL`")
}

func (o origin) upstreams() (registry.Upstreams, error) {
	switch {
	case o.source == imagesBuild && len(o.mirrors) > 0:
		return nil, usagef("--upstream is for --images=upstream alone")
	case o.source == imagesBuild:
		return nil, nil
	case o.source != imagesUpstream:
		return nil, usagef("--images: %q: expected %s or %s", o.source, imagesBuild, imagesUpstream)
	}
	from, err := registry.NewUpstreams(o.mirrors)
	if err != nil {
		return nil, usagef("--upstream: %w", err)
	}
	return from, nil
}

// subnets is the value of --subnets, a prefix; empty: labs have the documented subnets.
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

// move gives each scenario's lab a part of the prefix, so that the labs can exist at the same time.
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
