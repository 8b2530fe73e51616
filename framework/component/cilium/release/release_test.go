package release

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func values(t *testing.T, text string) Values {
	t.Helper()
	return must.Get(placeholder.Values{}.Map([]byte(text)))(t)
}

// Each router has a session with a name of its own: the API server rejects two peers of one name.
func TestPeering(t *testing.T) {
	routers := []netip.Addr{netip.MustParseAddr("10.4.94.239"), netip.MustParseAddr("10.4.94.238")}
	for _, graceful := range []bool{false, true} {
		parts := strings.Split(Peering{Routers: routers, RoutersASN: 64524, ASN: 64513, GracefulRestart: graceful}.manifest(V2), "\n---\n")
		if len(parts) != 3 {
			t.Fatalf("%d objects", len(parts))
		}
		cluster, config := values(t, parts[0]), values(t, parts[1])
		const want = "[map[localASN:64513 name:lab peers:[" +
			"map[name:router1 peerASN:64524 peerAddress:10.4.94.239 peerConfigRef:map[name:lab]] " +
			"map[name:router2 peerASN:64524 peerAddress:10.4.94.238 peerConfigRef:map[name:lab]]]]]"
		must.Equal(t, "", want, cluster.at("spec.bgpInstances"))
		must.Equal(t, "graceful restart", fmt.Sprint(graceful), config.at("spec.gracefulRestart.enabled"))
	}
}

// Services whose addresses are announced have the label that the session's families ask for.
func TestPeeringOfServices(t *testing.T) {
	parts := strings.Split(Peering{LoadBalancers: netip.MustParsePrefix("10.62.128.0/24")}.manifest(Alpha), "---\n")
	if len(parts) != 5 {
		t.Fatalf("%d objects", len(parts))
	}
	label := fmt.Sprint(values(t, "{"+Announced+"}"))
	announcement, pool := values(t, parts[3]), values(t, parts[4])
	want := "[map[advertisementType:Service selector:map[matchLabels:" + label + "] service:map[addresses:[LoadBalancerIP]]]]"
	must.Equal(t, "advertisements", want, announcement.at("spec.advertisements"))
	must.Equal(t, "the announcement's labels", label, announcement.at("metadata.labels"))
	must.Equal(t, "blocks", "[map[cidr:10.62.128.0/24]]", pool.at("spec.blocks"))
}

// A dual lab has a session of each family, which carries that family alone, and a pool of both.
func TestPeeringOfBothFamilies(t *testing.T) {
	p := Peering{Routers: []netip.Addr{netip.MustParseAddr("10.4.94.239")}, Dual: true, RoutersASN: 64524, ASN: 64513, LoadBalancers: netip.MustParsePrefix("10.62.128.0/24")}
	for _, types := range []Types{V2, Policy} {
		text := p.manifest(types)
		parts := strings.Split(text, "---\n")
		for _, part := range parts {
			values(t, part)
		}
		for _, has := range []string{"10.4.94.239", "fd5c:3f1e:a2d7::a04:5eef", "afi: ipv4", "afi: ipv6", "{cidr: 10.62.128.0/24}, {cidr: \"fd5c:3f1e:a2d7::a3e:8000/120\"}"} {
			must.Equal(t, fmt.Sprint(types, " ", has, " in\n", text), 1, strings.Count(text, has))
		}
	}
}

// Each version gets the types that its documentation has. A policy is one object.
func TestTypes(t *testing.T) {
	p := Peering{Routers: []netip.Addr{netip.MustParseAddr("10.4.94.239")}, RoutersASN: 64524, ASN: 64513, LoadBalancers: netip.MustParsePrefix("10.62.128.0/24")}
	const bgp, pool = " CiliumBGPClusterConfig CiliumBGPPeerConfig CiliumBGPAdvertisement CiliumBGPAdvertisement", " CiliumLoadBalancerIPPool"
	for version, want := range map[string]string{
		"1.15.19": "cilium.io/v2alpha1 CiliumBGPPeeringPolicy" + pool,
		"1.16.0":  "cilium.io/v2alpha1" + bgp + pool, "1.17.8": "cilium.io/v2alpha1" + bgp + pool,
		"1.18.0-rc.0": "cilium.io/v2" + bgp + pool, "1.19.3": "cilium.io/v2" + bgp + pool,
	} {
		var got string
		for _, part := range strings.Split(p.manifest(TypesOf(version)), "---\n") {
			object := values(t, part)
			if apiVersion := object.at("apiVersion"); got == "" {
				got = apiVersion
			} else if !strings.HasPrefix(got, apiVersion+" ") {
				t.Errorf("%s: %s beside %s", version, apiVersion, got)
			}
			got += " " + object.at("kind")
		}
		must.Equal(t, version, want, got)
	}
	routers, _ := chart.Get(values(t, strings.Split(p.manifest(Policy), "---\n")[0]), "spec.virtualRouters")
	const want = "[map[exportPodCIDR:true localASN:64513 neighbors:[map[gracefulRestart:map[enabled:false restartTimeSeconds:120] " +
		"peerASN:64524 peerAddress:10.4.94.239/32]] serviceSelector:map[matchLabels:map[announced-by:lab]]]]"
	must.Equal(t, routers, want, fmt.Sprint(routers))
}

// The lab's settings take precedence over the user's values, which are not changed, and depend on the mode.
func TestSettings(t *testing.T) {
	cluster := topology.Cluster{PodCIDR: netip.MustParsePrefix("10.62.64.0/20"), NodeMask: 24}
	server := netip.MustParseAddrPort("10.62.4.11:6443")
	for _, test := range []struct {
		name, values  string
		dual          bool
		native, proxy bool // proxy: Cilium replaces kube-proxy
		bgp           bool
		want          []string
		not           string
	}{
		{name: "the chart's defaults", want: []string{"envoy.enabled=false", "hubble.enabled=false", "image.useDigest=false"},
			not: "k8sServiceHost ipv4NativeRoutingCIDR ipv6.enabled"},
		{
			name: "native with BGP", values: "{routingMode: native, ipv4NativeRoutingCIDR: 10.0.0.0/8, kubeProxyReplacement: true, bgpControlPlane: {enabled: true}}",
			native: true, proxy: true, bgp: true,
			want: []string{"ipv4NativeRoutingCIDR=10.62.64.0/20", "k8sServiceHost=10.62.4.11", "k8sServicePort=6443"},
		},
		{name: "a string for a boolean", values: `{kubeProxyReplacement: "true"}`, proxy: true, want: []string{"k8sServiceHost=10.62.4.11"}},
		{name: "both families", dual: true, values: "{routingMode: native}", native: true, not: "k8sServiceHost",
			want: []string{"ipv6.enabled=true", "ipv6NativeRoutingCIDR=fd5c:3f1e:a2d7::a3e:4000/116", "ipam.operator.clusterPoolIPv6MaskSize=120"}},
		{name: "both families, and a lab of IPv4", values: "{ipv6: {enabled: true}}", want: []string{"ipv6.enabled=false"}},
		{name: "Envoy asked for", values: "{envoy: {enabled: true, log: {path: /x}}}", want: []string{"envoy.enabled=false"}, not: "k8sServiceHost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := values(t, test.values)
			must.Equal(t, "native, in place of kube-proxy, BGP", [3]bool{test.native, test.proxy, test.bgp}, [3]bool{v.Native(), v.ReplacesKubeProxy(), v.BGP()})
			settings := Release{Version: "1.19.3", Values: v}.Settings(topology.Topology{Dual: test.dual, Clusters: []topology.Cluster{cluster}}, server)
			var texts []string
			for _, s := range settings {
				texts = append(texts, s.String())
				if s.Why == "" || slices.Contains(strings.Fields(test.not), s.Path) {
					t.Errorf("%s is set, because %q", s, s.Why)
				}
			}
			must.Contain(t, strings.Join(texts, "\n")+"\n", each.Of(test.want, func(want string) string { return want + "\n" })...)
			before := values(t, test.values)
			all := v.with(settings)
			must.Equal(t, "envoy", [2]string{"false", before.at("envoy.log.path")}, [2]string{all.at("envoy.enabled"), all.at("envoy.log.path")})
			must.Equal(t, v, before.at("envoy.enabled"), v.at("envoy.enabled"))
		})
	}
}
