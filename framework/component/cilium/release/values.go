package release

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/topology"
)

// Values are those of the chart, as Helm reads them from a file: maps, lists, strings,
// numbers and booleans of JSON.
type Values map[string]any

// Setting is a value that a lab sets, whatever the user's values say.
type Setting struct {
	Path  []string
	Value any // nil takes the chart's default away
	Why   string
}

// String is the setting as helm --set takes it.
func (s Setting) String() string {
	value := fmt.Sprint(s.Value)
	if s.Value == nil {
		value = "null"
	}
	return strings.Join(s.Path, ".") + "=" + value
}

// with returns a copy that has the settings.
func (v Values) with(settings []Setting) (Values, error) {
	all := runtime.DeepCopyJSON(v)
	if all == nil {
		all = Values{}
	}
	for _, s := range settings {
		if err := unstructured.SetNestedField(all, s.Value, s.Path...); err != nil {
			return nil, fmt.Errorf("setting %s: %w", s, err)
		}
	}
	return all, nil
}

// at is a value as text; empty if it is not set.
func (v Values) at(path ...string) string {
	value, there, err := unstructured.NestedFieldNoCopy(v, path...)
	if err != nil || !there || value == nil {
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
func (v Values) BGP() bool { return v.at("bgpControlPlane", "enabled") == "true" }

// Settings are what a lab has to set, because it lacks something or has it otherwise. The
// cluster is the lab's, and so is the address of its API server.
func (r Release) Settings(c topology.Cluster, apiServer netip.AddrPort) []Setting {
	const (
		built  = "the image is built from the vendor's module and has another digest"
		envoy  = "Envoy is not a Go program, and is not built"
		hubble = "what makes its certificates, its relay and its interface are not built"
		ranges = "the pod range is the lab's"
		server = "the address of the API server is the lab's: nothing serves its Service before the agents do"
	)
	set := func(why string, value any, path ...string) Setting {
		return Setting{Path: path, Value: value, Why: why}
	}
	all := []Setting{
		set(built, false, "image", "useDigest"),
		set(built, false, "operator", "image", "useDigest"),
		set(envoy, false, "envoy", "enabled"),
		set(envoy, false, "l7Proxy"),
		set(hubble, false, "hubble", "enabled"),
		set("agents are replaced node by node", map[string]any{"type": "OnDelete", "rollingUpdate": nil}, "updateStrategy"),
		set(ranges, []any{c.PodCIDR.String()}, "ipam", "operator", "clusterPoolIPv4PodCIDRList"),
		set(ranges, int64(c.NodeMask), "ipam", "operator", "clusterPoolIPv4MaskSize"),
	}
	if r.Values.Native() {
		all = append(all, set(ranges, c.PodCIDR.String(), "ipv4NativeRoutingCIDR"))
	}
	if r.Values.ReplacesKubeProxy() {
		all = append(all, set(server, apiServer.Addr().String(), "k8sServiceHost"), set(server, int64(apiServer.Port()), "k8sServicePort"))
	}
	return all
}
