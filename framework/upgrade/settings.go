package upgrade

import (
	"fmt"

	"github.com/relapse-dev/relapse/topology"
)

// Settings are what the user has given for the component. Each may be empty.
type Settings struct {
	// Config is the component's own configuration: a KubeProxyConfiguration or a Corefile.
	Config string
	// Mode is the mode in which the component runs, if it has several and Config names
	// none.
	Mode string
	// Manifests are objects of the component's own types: MetalLB's pools, peers and
	// advertisements, as YAML documents.
	Manifests string
}

// Of declares the upgrade of a component from one version to another with the user's
// settings. The error says what is wrong with the request, in one sentence.
func Of(component, from, to string, s Settings) (Upgrade, error) {
	u, there := For(component)
	if !there {
		return Upgrade{}, fmt.Errorf("this version of relapse has no upgrade of %s%s", component, topology.Nearest(component, Components()))
	}
	if u.With != nil {
		return u.With(from, to, s)
	}
	if s != (Settings{}) {
		return Upgrade{}, fmt.Errorf("the lab of an upgrade of %s takes no mode and no manifests", component)
	}
	return u.between(from, to), nil
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
