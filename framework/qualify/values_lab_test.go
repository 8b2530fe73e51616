//go:build lab

package qualify

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestVendorsChartsAreCompared(t *testing.T) {
	for _, test := range []struct {
		name, values string
		mode         string
	}{
		{"the charts' defaults", "{}", "routing tunnel vxlan, IPAM cluster-pool, Services by kube-proxy, masquerade iptables"},
		{"native", "{routingMode: native, ipv4NativeRoutingCIDR: 10.0.0.0/8, autoDirectNodeRoutes: true, bgpControlPlane: {enabled: true}, kubeProxyReplacement: true, k8sServiceHost: auto, bpf: {masquerade: true}, devices: bond0}",
			"routing native, IPAM cluster-pool, Services by Cilium in place of kube-proxy, masquerade bpf, BGP control plane"},
		{"tunnel", "{routingMode: tunnel, tunnelProtocol: vxlan, bpf: {masquerade: false}, gatewayAPI: {enabled: false}}", "routing tunnel vxlan, IPAM cluster-pool, Services by kube-proxy, masquerade iptables"},
	} {
		t.Run(test.name, func(t *testing.T) {
			given := must.Get(releasefile.ReadAll("cilium", nil, releasefile.File{Name: "my.yaml", Text: []byte(test.values)}))(t)
			v := must.Get(ReadValues(t.Context(), "cilium", "1.18.4", "1.19.3", netip.Prefix{}, given))(t)
			must.Equal(t, "mode", test.mode, v.Mode.String())
			for _, r := range v.Replaced {
				t.Log(r)
			}
			rows := v.rendered.rows("1.18.4", "1.19.3", "my.yaml", v)
			for _, r := range rows {
				t.Log(r.State, r.Name, "|", r.From, "|", r.To, "|", r.Says)
			}
			// 1.19 switches mutual authentication off, and its notes say so.
			c, _ := each.First(v.rendered.Changes, func(c Change) bool { return c.Key == "mesh-auth-enabled" })
			must.Equal(t, c, [...]string{"true", "false"}, [...]string{c.From, c.To})
			must.Contain(t, c.Note, "now disabled by default")
			if host, _ := chart.Get(v.OfLab(), "k8sServiceHost"); test.name == "native" {
				must.Equal(t, "the API server of the lab", any("10.62.4.11"), host)
			}
		})
	}
}
