package snapshot

import (
	"net/http"
	"net/netip"
	"testing"

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
	of := must.Get(read(object("BGPAdvertisement", "x", `{}`, `{"aggregationLength":24,"aggregationLengthV6":112,"peers":["tor1"]}`)))(t)[0]
	must.Equal(t, "aggregated, to one peer", []any{24, 112, []string{"tor1"}}, []any{of.AggregationLength, of.AggregationLengthV6, of.Peers})
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
