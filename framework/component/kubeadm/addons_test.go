package kubeadm

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestConfig(t *testing.T) {
	text := must.Get(config(netip.MustParseAddrPort("10.50.0.11:6443"), topology.Topology{Clusters: []topology.Cluster{{
		PodCIDR: netip.MustParsePrefix("10.52.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
	}}}))(t)
	objects := must.Get(workload.Objects(text))(t)
	must.Equal(t, "objects", 3, len(objects))
	cluster := objects[1].Object
	must.Equal(t, "the nodes reach the API server at", "10.50.0.11:6443", cluster["controlPlaneEndpoint"])
	must.Equal(t, "version", "v"+KubernetesVersion, cluster["kubernetesVersion"])
	network := cluster["networking"].(map[string]any)
	if network["podSubnet"] != "10.52.0.0/16" || network["serviceSubnet"] != "10.96.0.0/16" || strings.Contains(text, "ipv6") {
		t.Errorf("networking: %v", network)
	}
	text = must.Get(config(netip.MustParseAddrPort("10.50.0.11:6443"), topology.Topology{Dual: true, Clusters: []topology.Cluster{{
		PodCIDR: netip.MustParsePrefix("10.52.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), NodeMask: 24,
	}}}))(t)
	for _, part := range []string{`podSubnet: "10.52.0.0/16,fd5c:3f1e:a2d7::a34:0/112"`, `{name: node-cidr-mask-size-ipv6, value: "120"}`} {
		must.Contain(t, text, part)
	}
}
