package snapshot

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	advertisementsPath = "/apis/metallb.io/v1beta1/bgpadvertisements"
	poolsPath          = "/apis/metallb.io/v1beta1/ipaddresspools"
)

func TestBGPAdvertisements(t *testing.T) {
	list := func(kind, items string) http.HandlerFunc {
		return answer(http.StatusOK, `{"apiVersion":"metallb.io/v1beta1","kind":"`+kind+`List","items":[`+items+`]}`)
	}
	object := func(kind, name, labels, spec string) string {
		return `{"apiVersion":"metallb.io/v1beta1","kind":"` + kind + `","metadata":{"namespace":"metallb-system","name":"` + name + `","labels":` + labels + `},"spec":` + spec + `}`
	}
	read := func(advertisements string) ([]BGPAdvertisement, error) {
		t.Helper()
		c := clusterOf(t, map[string]http.HandlerFunc{
			nodesPath:          protobuf(t, racked("b", "1", "a", "1", "c", "2")),
			advertisementsPath: list("BGPAdvertisement", advertisements),
			poolsPath: list("IPAddressPool", object("IPAddressPool", "one", `{"for":"users"}`, `{"addresses":["192.0.2.0/29"]}`)+","+
				object("IPAddressPool", "two", `{}`, `{"addresses":["198.51.100.1 - 198.51.100.9"]}`)),
		})
		return c.bgpAdvertisements(t.Context())
	}
	at := netip.MustParseAddr
	one, two := AddressRange{at("192.0.2.0"), at("192.0.2.7")}, AddressRange{at("198.51.100.1"), at("198.51.100.9")}
	for _, test := range []struct {
		name, spec string
		ranges     []AddressRange
		nodes      []string
	}{
		{"of everything", `{}`, []AddressRange{one, two}, []string{"a", "b", "c"}},
		{"of a pool, by a rack", `{"ipAddressPools":["two"],"nodeSelectors":[{"matchLabels":{"rack":"1"}}]}`, []AddressRange{two}, []string{"a", "b"}},
		{"of selected pools, by two racks", `{"ipAddressPoolSelectors":[{"matchLabels":{"for":"users"}}],"nodeSelectors":[{"matchLabels":{"rack":"1"}},{"matchLabels":{"rack":"2"}}]}`,
			[]AddressRange{one}, []string{"a", "b", "c"}},
		{"by no node", `{"nodeSelectors":[{"matchLabels":{"rack":"3"}}]}`, []AddressRange{one, two}, nil},
	} {
		want := []BGPAdvertisement{{Namespace: "metallb-system", Name: "x", Ranges: test.ranges, Nodes: test.nodes}}
		must.Equal(t, test.name, want, must.Get(read(object("BGPAdvertisement", "x", `{}`, test.spec)))(t), byValue)
	}
	must.Equal(t, "without any", nil, must.Get(read(""))(t))
	bad := `{"nodeSelectors":[{"matchExpressions":[{"key":"rack","operator":"Is"}]}]}`
	must.Fail(t, must.Err(read(object("BGPAdvertisement", "x", `{}`, bad))), "BGPAdvertisement metallb-system/x: spec.nodeSelectors")
	item := must.Get(read(object("BGPAdvertisement", "x", `{}`, `{"aggregationLength":24,"aggregationLengthV6":112,"peers":["tor1"]}`)))(t)[0]
	must.Equal(t, "aggregated, to one peer", []any{24, 112, []string{"tor1"}}, []any{item.AggregationLength, item.AggregationLengthV6, item.Peers})
	for length, want := range map[int]string{0: "192.0.2.9/32", 24: "192.0.2.0/24", 32: "192.0.2.9/32"} {
		must.Equal(t, length, want, (BGPAdvertisement{AggregationLength: length}).Prefix(at("192.0.2.9")).String())
	}
	for length, want := range map[int]string{0: "fd00::9/128", 112: "fd00::/112", 128: "fd00::9/128", 129: "fd00::9/128"} {
		b := BGPAdvertisement{AggregationLength: 24, AggregationLengthV6: length}
		must.Equal(t, length, want, b.Prefix(at("fd00::9")).String())
	}
	for address, want := range map[string]bool{"198.51.100.0": false, "198.51.100.9": true, "198.51.100.10": false} {
		must.Equal(t, address, want, two.Contains(at(address)))
	}
}

func TestMetalLBPeers(t *testing.T) {
	c := clusterOf(t, map[string]http.HandlerFunc{
		"/apis/metallb.io/v1beta2/bgppeers": answer(http.StatusOK, `{"apiVersion":"metallb.io/v1beta2","kind":"BGPPeerList","items":[
			{"apiVersion":"metallb.io/v1beta2","kind":"BGPPeer","metadata":{"namespace":"metallb-system","name":"tor1"},"spec":{"peerASN":64524,"bfdProfile":"fast"}},
			{"apiVersion":"metallb.io/v1beta2","kind":"BGPPeer","metadata":{"namespace":"metallb-system","name":"tor2"},"spec":{"peerASN":64524}}]}`),
	})
	want := []MetalLBPeer{{Namespace: "metallb-system", Name: "tor1", BFDProfile: "fast"}, {Namespace: "metallb-system", Name: "tor2"}}
	must.Equal(t, "", want, must.Get(metalLBPeers.items(t.Context(), c))(t))
}

// The holders are the nodes in MetalLB's statuses and the holders of Cilium's leases. Other clusters have none.
func TestL2Announcements(t *testing.T) {
	const (
		statuses = "/apis/metallb.io/v1beta1/servicel2statuses"
		leases   = "/apis/coordination.k8s.io/v1/leases"
	)
	list := func(items ...string) http.HandlerFunc {
		return answer(http.StatusOK, `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(items, ",")+`]}`)
	}
	service := func(namespace, name string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}}
	}
	status := `{"kind":"ServiceL2Status","metadata":{"name":"l2-x"},"status":{"node":"b","serviceName":"web","serviceNamespace":"default"}}`
	lease := func(name, holder string, renewed time.Duration) string {
		return fmt.Sprintf(`{"kind":"Lease","metadata":{"namespace":"kube-system","name":%q},"spec":{"holderIdentity":%q,"leaseDurationSeconds":15,"renewTime":%q}}`,
			name, holder, time.Now().Add(-renewed).UTC().Format(metav1.RFC3339Micro))
	}
	announcement := func(service, node, lease string) L2Announcement {
		return L2Announcement{Service: service, Node: node, Lease: lease}
	}
	for name, test := range map[string]struct {
		answers map[string]http.HandlerFunc
		want    []L2Announcement
	}{
		"neither":   {map[string]http.HandlerFunc{leases: list(lease("cilium-operator-resource-lock", "a", 0))}, nil},
		"MetalLB's": {map[string]http.HandlerFunc{statuses: list(status), leases: list()}, []L2Announcement{announcement("default/web", "b", "")}},
		"Cilium's": {
			map[string]http.HandlerFunc{leases: list(lease("cilium-l2announce-a-b-c", "a", 70*time.Second), lease("cilium-l2announce-default-web", "", 0))},
			[]L2Announcement{announcement("a-b/c", "a", "kube-system/cilium-l2announce-a-b-c")},
		},
		"one that has ended": {map[string]http.HandlerFunc{leases: list(lease("cilium-l2announce-default-web", "a", 80*time.Second))}, nil},
		"both": {
			map[string]http.HandlerFunc{statuses: list(status), leases: list(lease("cilium-l2announce-default-web", "a", 0))},
			[]L2Announcement{announcement("default/web", "a", "kube-system/cilium-l2announce-default-web"), announcement("default/web", "b", "")},
		},
	} {
		test.answers[servicesPath] = protobuf(t, &corev1.ServiceList{Items: []corev1.Service{service("default", "web"), service("a-b", "c")}})
		test.answers["/apis/apiextensions.k8s.io/v1/customresourcedefinitions"] = list()
		must.Equal(t, name, test.want, must.Get(clusterOf(t, test.answers).l2Announcements(t.Context()))(t))
	}
}
