package upgrade

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Upgrade declares how a component of a lab is upgraded between two versions. Its functions get the lab in the Run.
type Upgrade struct {
	// Component is the component's name, as in the names of its images.
	Component string
	// Form is how much of the vendor's program runs.
	Form framework.Form
	// Topology is the lab, and Besides what else runs on it, such as "kube-proxy 1.34.4 in mode iptables".
	Topology topology.Topology
	Besides  string
	// Mode is the mode in which the component runs, if it has several.
	Mode string
	// Under is a setting on which the result depends, such as "without graceful restart of BGP"; may be empty.
	Under string
	// Otherwise is the same upgrade under another setting, if the user's setting is unknown; nil: none.
	Otherwise *Upgrade
	// Replaced are clauses on the parts of the user's settings that the lab replaces.
	Replaced []string
	// Fit is an error if this machine cannot run the upgrade, beyond what every lab needs. Nil: it always can.
	Fit func() error
	// Images are the images that the lab's registry serves for a version.
	Images func(version string) []string
	// Install is the action that installs a version and all else, also on a used lab, and waits until all works.
	Install func(version string) framework.Action
	// Ends are the endpoints of the probes, and Paths the kinds of paths with their probes.
	Ends  []framework.Endpoint
	Paths []PathKind
	// Failovers are tried with both versions; empty if no node answers for addresses by ARP.
	Failovers []FailoverKind
	// Release is the action that applies a version's types, RBAC, manifest and operator, and no agent. Nil: nothing.
	Release func(version string) framework.Action
	// Nodes are in the order in which they are changed. Their kernels are compared.
	Nodes []string
	// Parts, such as a Deployment, are changed if the component has no agents on Nodes.
	Parts []string
	// Roll replaces the agent of a node, or a part, by the released version, and waits until it is ready.
	Roll func(ctx context.Context, r *framework.Run, node, version string) error
	// Works waits until a node's agent that was started since a time does new work; old work goes on without it. It is
	// called after each Roll. An error other than *await.TimeoutError says nothing of the agent. Nil: not called.
	Works askAgent
	// Steady returns a function that later returns a *workload.EndedError if a node's agent has ended. May be nil.
	Steady func(ctx context.Context, r *framework.Run, node string) (func(context.Context) error, error)
	// Explain says in one clause why a node's agent does not work. Nil: its log's end does, if a container ends.
	Explain func(ctx context.Context, r *framework.Run, node string) string
	// Migrate is the last step of the upgrade. It is not undone. The zero value: nothing.
	Migrate Migration
	// Half upgrades half of a part, if the parts cannot be changed one after the other: it returns when some replicas of
	// the version work, and holds the rest until Roll. Nil: half of the nodes are rolled.
	Half func(ctx context.Context, r *framework.Run, part, version string) error
	// Crash ends the agent of a node, or a replica of a part, that still has a version after half of the rollout from it.
	// It starts again by itself, with the same version. works waits until it works; a second call returns an error if
	// the agent has ended since the first one. Nil: no agent crashes.
	Crash func(ctx context.Context, r *framework.Run, node, version string) (works func(context.Context) error, err error)
	// Pods are the component's own pods. They show whether a version that does not come up ends by itself.
	Pods []workload.Pods
	// Normalize rewrites an item of a kernel without parts that change by themselves; empty: it is omitted. May be nil.
	Normalize func(kind, what string) string
	// Passing reports whether the component may announce a prefix only because the lab asks it for new work. If no router
	// had the prefix at rest, its changes do not count. May be nil.
	Passing func(netip.Prefix) bool
	// RollWithin bounds the change of one node; zero means three minutes.
	RollWithin time.Duration

	// Tests replace kernelOf and endsByItself.
	kernel func(ctx context.Context, r *framework.Run, node string) (string, error)
	ends   func(ctx context.Context, r *framework.Run) (string, error)

	secrets []string // in the values
}

// askAgent asks a node's agent, with a version and started since a time, for new work.
type askAgent func(ctx context.Context, r *framework.Run, node, version string, began time.Time) error

// Migration is a step of an upgrade after its rollout.
type Migration struct {
	Name string
	Do   func(ctx context.Context, r *framework.Run) error
}

// PathKind is one kind of path through the lab, such as from outside to a pod, with its probes.
type PathKind struct {
	Name   string // also the name of the measured Path
	Probes []probe.Probe
	// OneWay is set if a packet counts as answered once its request arrives.
	OneWay bool
	// BySource is set if the path measures the addresses from which packets arrive.
	BySource bool
}

type declare func(from, to string, s Settings) (Upgrade, error)

var declarations = map[string]declare{
	"calico":      ofValues("calico", calicoUpgrade),
	"cilium":      ciliumUpgrade,
	"coredns":     coreDNSUpgrade,
	"kube-proxy":  kubeProxyUpgrade,
	"kube-router": ofValues("kube-router", kubeRouterUpgrade),
	"metallb":     metalLBUpgrade,
}

func Has(component string) bool { return declarations[component] != nil }

// Components are the components whose upgrade is declared, in order of their names.
func Components() []string { return slices.Sorted(maps.Keys(declarations)) }

func (u Upgrade) changed() []string {
	if u.Parts != nil {
		return u.Parts
	}
	return u.Nodes
}

func (u Upgrade) kind() string {
	if u.Parts != nil {
		return "parts"
	}
	return "nodes"
}

// ImagesOf names every image of an upgrade, each once, without the lab's own images.
func (u Upgrade) ImagesOf(from, to string) []string {
	return each.Once(slices.Concat(u.Images(from), u.Images(to)))
}

// probes are the probes of all paths, each once: several paths may share a probe.
func (u Upgrade) probes() []probe.Probe {
	var all []probe.Probe
	for _, k := range u.Paths {
		for _, p := range k.Probes {
			p = p.WithDefaults()
			if !slices.ContainsFunc(all, func(q probe.Probe) bool { return q.Name == p.Name }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// scenario is the upgrade in the form in which a lab is made: with a topology and images.
func (u Upgrade) scenario(from, to string) framework.Scenario {
	return framework.Scenario{
		Incident: framework.Incident{Name: "upgrade of " + u.Component},
		Topology: u.Topology,
		Tested: []framework.Tested{
			{Name: u.Component + ".from", Default: from}, {Name: u.Component + ".to", Default: to, Varied: true},
		},
		Variants: []framework.Variant{{
			Name: fmt.Sprintf("%s %s to %s", u.Component, from, to), Role: framework.Unclassified, Form: u.Form,
			Components: map[string]string{u.Component: from}, Images: u.ImagesOf(from, to),
		}},
	}
}

func (u Upgrade) about() string {
	text := strings.Join(slices.Concat(each.Of(u.Topology.Nodes(), func(n topology.Node) string {
		text := fmt.Sprintf("%s (%s", n.Name, n.Role)
		if n.Kernel != "" {
			text += ", kernel " + n.Kernel
		}
		return text + ")"
	}), each.Of(u.Topology.Routers, func(r topology.Router) string { return r.Name + " (router)" }),
		each.Of(u.Topology.Hosts, func(h topology.Host) string { return h.Name + " (host)" })), ", ")
	if u.Besides != "" {
		text += "; " + u.Besides
	}
	return text
}

func atLeast(version, other string) bool { return semver.Compare("v"+version, "v"+other) >= 0 }

// Settings are the user's settings of the component. Each may be empty.
type Settings struct {
	// Config is the component's own configuration: a KubeProxyConfiguration or a Corefile.
	Config string
	// Mode is the mode in which the component runs, if it has several and Config names none.
	Mode string
	// Manifests are objects of the component's own types, as YAML documents.
	Manifests string
	// Values are values of the vendor's chart, adapted to the lab (package labvalues).
	Values map[string]any
	// Subnets is a prefix into which the lab's networks are moved.
	Subnets netip.Prefix
	// Family is framework.Dual, or IPv4 for a lab with IPv4 alone. Empty: the values or the manifests choose.
	Family string `json:",omitempty"`
}

// Of declares an upgrade with the user's settings. The error says in one sentence what is wrong with the request.
func Of(component, from, to string, s Settings) (Upgrade, error) {
	declared, there := declarations[component]
	if !there {
		return Upgrade{}, fmt.Errorf("this version of relapse has no upgrade of %s%s", component, topology.Nearest(component, Components()))
	}
	if !slices.Contains([]string{"", string(topology.IPv4), framework.Dual}, s.Family) {
		return Upgrade{}, fmt.Errorf("family %q: expected %s or %s", s.Family, topology.IPv4, framework.Dual)
	}
	u, err := declared(from, to, s)
	if err != nil {
		return u, err
	}
	if s.Family == framework.Dual && !u.Topology.Dual {
		return u, fmt.Errorf("the lab of an upgrade of %s %s to %s is of IPv4 alone: family %s is for MetalLB, and for Cilium from %s on",
			component, from, to, framework.Dual, labvalues.First)
	}
	for d := &u; d != nil; d = d.Otherwise {
		d.secrets = chart.Secrets(s.Values)
		if !s.Subnets.IsValid() {
			continue
		}
		moves, err := d.Topology.Within(s.Subnets)
		if err != nil {
			return u, fmt.Errorf("--subnets: %w", err)
		}
		d.Topology, d.Besides = d.Topology.Renumber(moves), moves.Text(d.Besides)
	}
	return u, nil
}

// ofValues declares the upgrade of a component without settings other than values.
func ofValues(component string, upgrade func() Upgrade) declare {
	return func(_, _ string, s Settings) (Upgrade, error) {
		if s.Config != "" || s.Mode != "" || s.Manifests != "" {
			return Upgrade{}, fmt.Errorf("the lab of an upgrade of %s takes no mode and no manifests", component)
		}
		return upgrade(), nil
	}
}

// ConfigKey is the key under which a component's ConfigMap has Settings.Config; empty if it takes none.
func ConfigKey(component string) string {
	switch component {
	case "kube-proxy":
		return "config.conf" // kubeadm's
	case "coredns":
		return "Corefile"
	}
	return ""
}
