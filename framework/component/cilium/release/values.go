package release

import (
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology"
)

// Values are those of the chart, as Helm reads them from a file: maps, lists, strings,
// numbers and booleans of JSON.
type Values map[string]any

// Setting is a value that a lab sets, whatever the user's values say.
type Setting struct {
	Path  string // such as envoy.enabled
	Value any    // nil takes the chart's default away
	Why   string
}

// String is the setting as helm --set takes it.
func (s Setting) String() string {
	if s.Value == nil {
		return s.Path + "=null"
	}
	return fmt.Sprintf("%s=%v", s.Path, s.Value)
}

// with returns a copy that has the settings.
func (v Values) with(settings []Setting) Values {
	all := chart.Merge(v)
	for _, s := range settings {
		chart.Set(all, s.Path, s.Value)
	}
	return all
}

// at is a value as text; empty if it is not set.
func (v Values) at(path string) string {
	value, there := chart.Get(v, path)
	if !there || value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// ReplacesKubeProxy reports whether Cilium runs without kube-proxy.
func (v Values) ReplacesKubeProxy() bool { return v.at("kubeProxyReplacement") == "true" }

// Native reports whether pods' packets have their own addresses between nodes, and not those
// of a tunnel, which is the default.
func (v Values) Native() bool { return v.at("routingMode") == "native" }

// BGP reports whether the agents speak BGP.
func (v Values) BGP() bool { return v.at("bgpControlPlane.enabled") == "true" }

// Settings are what a lab has to set, because it lacks something or has it otherwise. The
// cluster is the lab's, and so is the address of its API server.
func (r Release) Settings(c topology.Cluster, apiServer netip.AddrPort) []Setting {
	const (
		built  = "the image is built from the vendor's module and has another digest"
		envoy  = "Envoy is not a Go program, and is not built"
		hubble = "what makes its certificates, its relay and its interface are not built"
		rights = "not every machine has all capabilities that the chart lists (CAP_SYS_RESOURCE), and a privileged container gets those that it has"
		ranges = "the pod range is the lab's"
		server = "the address of the API server is the lab's: nothing serves its Service before the agents do"
	)
	all := []Setting{
		{"image.useDigest", false, built},
		{"operator.image.useDigest", false, built},
		{"envoy.enabled", false, envoy},
		{"l7Proxy", false, envoy},
		{"hubble.enabled", false, hubble},
		{"securityContext.privileged", true, rights},
		{"updateStrategy.type", "OnDelete", "agents are replaced node by node"},
		{"updateStrategy.rollingUpdate", nil, "agents are replaced node by node"},
		{"ipam.operator.clusterPoolIPv4PodCIDRList", []any{c.PodCIDR.String()}, ranges},
		{"ipam.operator.clusterPoolIPv4MaskSize", int64(c.NodeMask), ranges},
	}
	if r.Values.Native() {
		all = append(all, Setting{"ipv4NativeRoutingCIDR", c.PodCIDR.String(), ranges})
	}
	if r.Values.ReplacesKubeProxy() {
		all = append(all, Setting{"k8sServiceHost", apiServer.Addr().String(), server}, Setting{"k8sServicePort", int64(apiServer.Port()), server})
	}
	return all
}
