package upgrade

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

// Upgrade says how a component is taken from one version to another on a lab. The
// functions get the versions; what they need of the lab is in the Run.
type Upgrade struct {
	// Component is the component's name, as its images have it.
	Component string
	// Form is how much of the vendor's program runs.
	Form framework.Form
	// Topology is the lab, and Besides what else runs on it, such as
	// "kube-proxy 1.34.4 in mode iptables".
	Topology topology.Topology
	Besides  string
	// Between is the declaration for two versions, where it depends on both; else
	// it is nil.
	Between func(from, to string) Upgrade
	// Images are those that the lab's registry serves for a version.
	Images func(version string) []string
	// Install puts the component at a version, and all else, into the lab, in place
	// of what an earlier run has left. It returns when all works.
	Install func(ctx context.Context, r *framework.Run, version string) error
	// Ends are what the probes run between, and Paths which ways they go.
	Ends  []framework.Endpoint
	Paths []Way
	// Release brings to the cluster what a version has for all nodes together: its
	// types, its rights, its manifest, its operator. No agent is replaced by it.
	Release func(ctx context.Context, r *framework.Run, version string) error
	// Nodes are in the order in which they are changed.
	Nodes []string
	// Roll replaces the agent of a node by one of a version that Release was
	// called with, and returns when that does its work there.
	Roll func(ctx context.Context, r *framework.Run, node, version string) error
	// Steady rewrites what the kernel says of one thing, so that what changes by
	// itself is always the same. An empty text leaves the thing out. Nil: nothing
	// is rewritten.
	Steady func(kind, what string) string
	// Rest is how long the lab is watched before the upgrade, and after each
	// rollout; zero means ten seconds.
	Rest time.Duration
	// RollWithin bounds the change of one node; zero means three minutes.
	RollWithin time.Duration
}

// Way is one kind of way through the lab, with the probes on it.
type Way struct {
	// Name is what it is called in Path.
	Name   string
	Probes []probe.Probe
	// OneWay is set where only the requests count, and not whether they are
	// answered.
	OneWay bool
}

// upgrades are all that are declared, by component.
var upgrades = map[string]func() Upgrade{
	"calico":      calicoUpgrade,
	"cilium":      ciliumUpgrade,
	"kube-proxy":  kubeProxyUpgrade,
	"kube-router": kubeRouterUpgrade,
}

// For is the upgrade of a component; false where none is declared.
func For(component string) (Upgrade, bool) {
	declared, there := upgrades[component]
	if !there {
		return Upgrade{}, false
	}
	return declared(), true
}

// Components are those that For knows, in order of their names.
func Components() []string { return slices.Sorted(maps.Keys(upgrades)) }

// between is the declaration for two versions.
func (u Upgrade) between(from, to string) Upgrade {
	if u.Between == nil {
		return u
	}
	return u.Between(from, to)
}

// ImagesOf names every image of an upgrade from one version to another, each once: the
// lab's own are not among them.
func (u Upgrade) ImagesOf(from, to string) []string {
	u = u.between(from, to)
	all := slices.Concat(u.Images(from), u.Images(to))
	slices.Sort(all)
	return slices.Compact(all)
}

// probes are all of the paths, each once: several paths may count the same one.
func (u Upgrade) probes() []probe.Probe {
	var all []probe.Probe
	for _, w := range u.Paths {
		for _, p := range w.Probes {
			p = p.WithDefaults()
			if !slices.ContainsFunc(all, func(q probe.Probe) bool { return q.Name == p.Name }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// scenario is the upgrade as a lab is made for it: what a lab serves and is made of
// is said in the words of a scenario.
func (u Upgrade) scenario(from, to string) framework.Scenario {
	return framework.Scenario{
		Incident: framework.Incident{Name: "upgrade of " + u.Component},
		Topology: u.Topology,
		Variants: []framework.Variant{{
			Name: fmt.Sprintf("%s %s to %s", u.Component, from, to), Role: framework.Unclassified, Form: u.Form,
			Components: map[string]string{u.Component: from}, Images: u.ImagesOf(from, to),
		}},
	}
}

// about says in one line what the lab is made of.
func (u Upgrade) about() string {
	var parts []string
	for _, c := range u.Topology.Clusters {
		for _, n := range c.Nodes {
			text := fmt.Sprintf("%s (%s", n.Name, n.Role)
			if n.Kernel != "" {
				text += ", kernel " + n.Kernel
			}
			parts = append(parts, text+")")
		}
	}
	for _, r := range u.Topology.Routers {
		parts = append(parts, r.Name+" (router)")
	}
	for _, h := range u.Topology.Hosts {
		parts = append(parts, h.Name+" (host)")
	}
	text := strings.Join(parts, ", ")
	if u.Besides != "" {
		text += "; " + u.Besides
	}
	return text
}

// atLeast compares two versions.
func atLeast(version, other string) bool { return semver.Compare("v"+version, "v"+other) >= 0 }
