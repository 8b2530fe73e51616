package release

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology"
)

// Values are the chart's values, as Helm reads them from a file: maps, lists, strings, numbers and booleans of JSON.
type Values map[string]any

func (v Values) with(settings []chart.Setting) Values { return chart.With(v, settings) }

func (v Values) at(path string) string {
	value, there := chart.Get(v, path)
	if !there || value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// ReplacesKubeProxy reports whether Cilium runs without kube-proxy.
func (v Values) ReplacesKubeProxy() bool { return v.at("kubeProxyReplacement") == "true" }

// Native reports whether pods' packets have their own addresses between nodes. The default is a tunnel.
func (v Values) Native() bool { return v.at("routingMode") == "native" }

// NativeRouting are the values of native routing with BGP, without masquerading and without Services.
func NativeRouting() Values {
	return Values{
		"routingMode":          "native",
		"autoDirectNodeRoutes": true,
		"enableIPv4Masquerade": false,
		"enableIPv6Masquerade": false,
		"kubeProxyReplacement": false,
		"bgpControlPlane":      map[string]any{"enabled": true},
		"operator":             map[string]any{"replicas": int64(1)},
	}
}

// IPv6 reports whether pods and Services have both families: Cilium without IPv4 has no lab.
func (v Values) IPv6() bool { return v.at("ipv6.enabled") == "true" }

// BGP reports whether the agents speak BGP.
func (v Values) BGP() bool { return v.at("bgpControlPlane.enabled") == "true" }

// Layer2 reports whether the agents answer by ARP for the addresses of Services.
func (v Values) Layer2() bool { return v.at("l2announcements.enabled") == "true" }

// LeaseChance is by how much the time until another agent has the lease of an address varies: with the time of the last
// renewal, and with the others' polls, each after 1 to 2.2 retry periods (JitterFactor of client-go's leaderelection).
func (v Values) LeaseChance() time.Duration {
	retry, err := time.ParseDuration(v.at("l2announcements.leaseRetryPeriod"))
	if err != nil {
		retry = 2 * time.Second // the agent's default
	}
	return retry * 32 / 10
}

// Settings are what a lab has to set, because it lacks something or has it otherwise, such as the API server's address.
func (r Release) Settings(t topology.Topology, apiServer netip.AddrPort) []chart.Setting {
	c := t.Clusters[0]
	const (
		built  = "the image is built from the vendor's module and has another digest"
		envoy  = "Envoy is not a Go program, and is not built"
		hubble = "what makes its certificates, its relay and its interface are not built"
		rights = "not every machine has all capabilities that the chart lists (CAP_SYS_RESOURCE), " +
			"and a privileged container gets those that it has"
		ranges = "the pod range is the lab's"
		family = "the lab has both families, or IPv4 alone"
		server = "the address of the API server is the lab's: nothing serves its Service before the agents do"
	)
	all := []chart.Setting{
		{Path: "image.useDigest", Value: false, Why: built},
		{Path: "operator.image.useDigest", Value: false, Why: built},
		{Path: "envoy.enabled", Value: false, Why: envoy},
		{Path: "l7Proxy", Value: false, Why: envoy},
		{Path: "hubble.enabled", Value: false, Why: hubble},
		{Path: "securityContext.privileged", Value: true, Why: rights},
		{Path: "updateStrategy.type", Value: "OnDelete", Why: "agents are replaced node by node"},
		{Path: "updateStrategy.rollingUpdate", Value: nil, Why: "agents are replaced node by node"},
		{Path: "ipam.operator.clusterPoolIPv4PodCIDRList", Value: []any{c.PodCIDR.String()}, Why: ranges},
		{Path: "ipam.operator.clusterPoolIPv4MaskSize", Value: int64(c.NodeMask), Why: ranges},
	}
	if r.Values.Native() {
		all = append(all, chart.Setting{Path: "ipv4NativeRoutingCIDR", Value: c.PodCIDR.String(), Why: ranges})
	}
	if t.Dual || r.Values.IPv6() {
		all = append(all, chart.Setting{Path: "ipv6.enabled", Value: t.Dual, Why: family})
	}
	if t.Dual {
		pods := topology.IPv6.Prefix(c.PodCIDR).String()
		all = append(all, chart.Setting{Path: "ipam.operator.clusterPoolIPv6PodCIDRList", Value: []any{pods}, Why: ranges},
			chart.Setting{Path: "ipam.operator.clusterPoolIPv6MaskSize", Value: int64(c.NodeMask + topology.V6Bits), Why: ranges})
		if r.Values.Native() {
			all = append(all, chart.Setting{Path: "ipv6NativeRoutingCIDR", Value: pods, Why: ranges})
		}
	}
	if r.Values.ReplacesKubeProxy() || r.NoServices {
		all = append(all, chart.Setting{Path: "k8sServiceHost", Value: apiServer.Addr().String(), Why: server},
			chart.Setting{Path: "k8sServicePort", Value: int64(apiServer.Port()), Why: server})
	}
	return all
}
