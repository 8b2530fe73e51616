package upgrade

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/topology"
)

// Settings are what the user has given for the component. Each may be empty.
type Settings struct {
	// Config is the component's own configuration: a KubeProxyConfiguration or a Corefile.
	Config string
	// Mode is the mode in which the component runs, if it has several and Config names none.
	Mode string
	// Manifests are objects of the component's own types, as YAML documents: pools, peers and
	// advertisements of MetalLB or of Cilium's BGP.
	Manifests string
	// Values are those of the vendor's chart, adapted to the lab (package labvalues).
	Values map[string]any
	// Subnets is a prefix into which the lab's networks are moved.
	Subnets netip.Prefix
	// Family is framework.Dual for a lab of two families, and IPv4 for one of that alone. Empty: the values choose, or
	// the manifests.
	Family string `json:",omitempty"`
}

// Of declares the upgrade of a component from one version to another with the user's
// settings. The error says what is wrong with the request, in one sentence.
func Of(component, from, to string, s Settings) (Upgrade, error) {
	declared, there := declarations[component]
	if !there {
		return Upgrade{}, fmt.Errorf("this version of relapse has no upgrade of %s%s", component, topology.Nearest(component, Components()))
	}
	if !slices.Contains([]string{"", string(topology.IPv4), framework.Dual}, s.Family) {
		return Upgrade{}, fmt.Errorf("family %q: expected %s or %s", s.Family, topology.IPv4, framework.Dual)
	}
	u, err := declared(from, to, s)
	u.secrets = chart.Secrets(s.Values)
	if err == nil && s.Family == framework.Dual && !u.Topology.Dual {
		return u, fmt.Errorf("the lab of an upgrade of %s %s to %s is of IPv4 alone: family %s is for MetalLB, and for Cilium from %s on",
			component, from, to, framework.Dual, labvalues.First)
	}
	if err != nil || !s.Subnets.IsValid() {
		return u, err
	}
	if err := u.within(s.Subnets); err != nil {
		return u, fmt.Errorf("--subnets: %w", err)
	}
	return u, nil
}

// ofValues declares the upgrade of a component that takes values alone, or nothing.
func ofValues(component string, upgrade func() Upgrade) declare {
	return func(_, _ string, s Settings) (Upgrade, error) {
		if s.Config != "" || s.Mode != "" || s.Manifests != "" {
			return Upgrade{}, fmt.Errorf("the lab of an upgrade of %s takes no mode and no manifests", component)
		}
		return upgrade(), nil
	}
}

// ConfigKey is the key under which a component's ConfigMap has the configuration that
// Settings.Config takes; empty if the component takes none.
func ConfigKey(component string) string {
	switch component {
	case "kube-proxy":
		return "config.conf" // kubeadm's
	case "coredns":
		return "Corefile"
	}
	return ""
}
