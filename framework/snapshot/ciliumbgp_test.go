package snapshot

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestCiliumAdvertisements(t *testing.T) {
	service := func(name, address string, change func(*corev1.Service)) corev1.Service {
		s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "users", Name: name, Labels: map[string]string{"for": "users"}}}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		if change != nil {
			change(&s)
		}
		return s
	}
	class := func(className string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &className }
	}
	services := corev1.ServiceList{Items: []corev1.Service{
		service("web", "192.0.2.1", nil),
		service("local", "192.0.2.2", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }),
		service("classed", "192.0.2.3", class("io.cilium/bgp-control-plane")),
		service("others", "192.0.2.4", class("metallb")),
		service("dual", "192.0.2.6", func(s *corev1.Service) {
			s.Labels = nil
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::6"})
		}),
		service("inside", "192.0.2.5", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
	}}
	object := func(kind, name, spec string) string {
		return `{"apiVersion":"cilium.io/v2","kind":"` + kind + `","metadata":{"name":"` + name + `","labels":{"advertise":"` + name + `"}},"spec":` + spec + `}`
	}
	list := func(version, kind string, items ...string) http.HandlerFunc {
		return answer(http.StatusOK, `{"apiVersion":"cilium.io/`+version+`","kind":"`+kind+`List","items":[`+strings.Join(items, ",")+`]}`)
	}
	read := func(version, config, peer, entry string) ([]BGPAdvertisement, error) {
		t.Helper()
		c := clusterOf(t, map[string]http.HandlerFunc{
			nodesPath:          protobuf(t, racked("b", "1", "a", "1", "c", "2")),
			"/api/v1/services": protobuf(t, &services),
			"/apis/cilium.io/" + version + "/ciliumbgpclusterconfigs": list(version, "CiliumBGPClusterConfig", object("CiliumBGPClusterConfig", "lab", config)),
			"/apis/cilium.io/" + version + "/ciliumbgppeerconfigs":    list(version, "CiliumBGPPeerConfig", object("CiliumBGPPeerConfig", "tor", peer)),
			"/apis/cilium.io/v2alpha1/ciliumpodippools":               list("v2alpha1", "CiliumPodIPPool", object("CiliumPodIPPool", "default", `{}`), object("CiliumPodIPPool", "blue", `{}`)),
			"/apis/cilium.io/" + version + "/ciliumbgpadvertisements": list(version, "CiliumBGPAdvertisement", object("CiliumBGPAdvertisement", "lab", `{"advertisements":[`+entry+`]}`)),
		})
		return c.bgpAdvertisements(t.Context())
	}
	const (
		rack1 = `{"nodeSelector":{"matchLabels":{"rack":"1"}},"bgpInstances":[{"peers":[{"peerConfigRef":{"name":"tor"}}]}]}`
		every = `{"bgpInstances":[{"peers":[{"peerConfigRef":{"name":"tor"}}]}]}`
		other = `{"bgpInstances":[{"peers":[{"peerConfigRef":{"name":"spine"}},{}]}]}`
		peer  = `{"families":[{"afi":"ipv4","safi":"unicast","advertisements":{"matchLabels":{"advertise":"lab"}}}]}`
		peer6 = `{"families":[{"afi":"ipv6","safi":"unicast","advertisements":{"matchLabels":{"advertise":"lab"}}}]}`
		both  = `{"families":[{"afi":"ipv6","safi":"unicast","advertisements":{"matchLabels":{"advertise":"lab"}}},{"afi":"ipv4","safi":"unicast","advertisements":{"matchLabels":{"advertise":"lab"}}}]}`
		dual  = `{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"]},"selector":{"matchLabels":{"io.kubernetes.service.name":"dual"}}}`
		users = `{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"]},"selector":{"matchLabels":{"for":"users"}}}`
	)
	one := func(address string) AddressRange {
		a := netip.MustParseAddr(address)
		return AddressRange{a, a}
	}
	shared, alone := []AddressRange{one("192.0.2.3"), one("192.0.2.1")}, []AddressRange{one("192.0.2.2")}
	item := func(length int, ranges []AddressRange, nodes ...string) BGPAdvertisement {
		return BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Ranges: ranges, Nodes: nodes, AggregationLength: length, Families: []string{"ipv4"}}
	}
	to := func(b BGPAdvertisement, families ...string) []BGPAdvertisement {
		b.Families = families
		return []BGPAdvertisement{b}
	}
	nothing := []BGPAdvertisement{item(0, nil, "a", "b", "c")} // they are configured
	silent := BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Nodes: []string{"a", "b", "c"}, Unselected: true}
	for _, test := range []struct {
		name, version, config, peer, entry string
		want                               []BGPAdvertisement
	}{
		{"by a rack", "v2", rack1, peer, users, []BGPAdvertisement{item(0, shared, "a", "b"), item(0, alone, "a", "b")}},
		{"by every node, of 1.17", "v2alpha1", every, peer, users, []BGPAdvertisement{item(0, shared, "a", "b", "c"), item(0, alone, "a", "b", "c")}},
		{
			"aggregated, but for policy Local", "v2", every, peer,
			`{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"],"aggregationLengthIPv4":24},"selector":{"matchLabels":{"for":"users"}}}`,
			[]BGPAdvertisement{item(24, shared, "a", "b", "c"), item(0, alone, "a", "b", "c")},
		},
		{
			"aggregated in both families", "v2", every, both,
			`{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"],"aggregationLengthIPv4":24,"aggregationLengthIPv6":64},"selector":{"matchLabels":{"io.kubernetes.service.name":"dual"}}}`,
			func() []BGPAdvertisement {
				b := item(24, []AddressRange{one("192.0.2.6"), one("2001:db8::6")}, "a", "b", "c")
				b.AggregationLengthV6 = 64
				return to(b, "ipv4", "ipv6")
			}(),
		},
		{
			"by the Service's name", "v2", every, peer,
			`{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"]},"selector":{"matchLabels":{"io.kubernetes.service.name":"local"}}}`,
			[]BGPAdvertisement{item(0, alone, "a", "b", "c")},
		},
		{"without a selector, of no Service", "v2", every, peer, `{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"]}}`, nothing},
		{"pod ranges alone", "v2", every, peer, `{"advertisementType":"PodCIDR"}`,
			to(BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Nodes: []string{"a", "b", "c"}, PodCIDRs: true}, "ipv4")},
		{"pod ranges of both families", "v2", every, both, `{"advertisementType":"PodCIDR"}`,
			to(BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Nodes: []string{"a", "b", "c"}, PodCIDRs: true}, "ipv4", "ipv6")},
		{"pod ranges that no peer selects", "v2", other, peer, `{"advertisementType":"PodCIDR"}`,
			[]BGPAdvertisement{silent, {Name: "lab", Speaker: CiliumBGP, PodCIDRs: true, Unselected: true}}},
		{
			"pod ranges, by no node", "v2", `{"nodeSelector":{"matchLabels":{"rack":"9"}},"bgpInstances":[{"peers":[{"peerConfigRef":{"name":"tor"}}]}]}`, peer, `{"advertisementType":"PodCIDR"}`,
			[]BGPAdvertisement{
				{Name: "lab", Speaker: CiliumBGP, PodCIDRs: true, Families: []string{"ipv4"}},
				{Name: "lab", Speaker: CiliumBGP, PodCIDRs: true, Unselected: true},
			},
		},
		{
			"a pool", "v2", rack1, peer, `{"advertisementType":"CiliumPodIPPool","selector":{"matchLabels":{"io.cilium.podippool.name":"blue"}}}`,
			to(BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Nodes: []string{"a", "b"}, PodPools: []string{"blue"}}, "ipv4"),
		},
		{
			"all pools", "v2alpha1", rack1, peer, `{"advertisementType":"CiliumPodIPPool","selector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]}}`,
			to(BGPAdvertisement{Name: "lab", Speaker: CiliumBGP, Nodes: []string{"a", "b"}, PodPools: []string{"blue", "default"}}, "ipv4"),
		},
		{"without a selector, of no pool", "v2", every, peer, `{"advertisementType":"CiliumPodIPPool"}`, nothing},
		{"cluster IPs alone", "v2", every, peer, `{"advertisementType":"Service","service":{"addresses":["ClusterIP"]},"selector":{"matchLabels":{"for":"users"}}}`, nothing},
		{"by peers of another configuration", "v2", other, peer, users, []BGPAdvertisement{silent}},
		{"to IPv6 peers alone", "v2", every, peer6, users, to(item(0, nil, "a", "b", "c"), "ipv6")},
		{"of both families, to IPv4 peers", "v2", every, peer, dual, []BGPAdvertisement{item(0, []AddressRange{one("192.0.2.6")}, "a", "b", "c")}},
		{"of both families, to IPv6 peers", "v2", every, peer6, dual, to(item(0, []AddressRange{one("2001:db8::6")}, "a", "b", "c"), "ipv6")},
		{"of both families, to peers of both", "v2", every, both, dual, to(item(0, []AddressRange{one("192.0.2.6"), one("2001:db8::6")}, "a", "b", "c"), "ipv4", "ipv6")},
	} {
		must.Equal(t, test.name, test.want, must.Get(read(test.version, test.config, test.peer, test.entry))(t), byValue)
	}
	_, err := read("v2", every, peer, `{"advertisementType":"Service","service":{"addresses":["LoadBalancerIP"]},"selector":{"matchExpressions":[{"key":"a","operator":"Is"}]}}`)
	must.Fail(t, err, "CiliumBGPAdvertisement lab: a selector")
}
