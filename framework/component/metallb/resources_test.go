package metallb

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	tor      = Router{Address: netip.MustParseAddr("10.65.4.254"), ASN: 64524, ClusterASN: 64513}
	networks = []netip.Prefix{netip.MustParsePrefix("10.65.4.0/24"), netip.MustParsePrefix("10.96.0.0/16")}
)

const (
	pool          = "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p, namespace: metallb}\nspec: {addresses: [192.0.2.0/28]}\n---\n"
	peer          = "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: leaf1}\nspec: {myASN: 65000, peerASN: 65001, peerAddress: 10.0.0.1, passwordSecret: {name: s}, holdTime: 9s}\n---\n"
	advertisement = "apiVersion: metallb.io/v1beta1\nkind: BGPAdvertisement\nmetadata: {name: a}\nspec: {ipAddressPools: [p], aggregationLength: 32, peers: [leaf1]}\n---\n"
)

func TestResources(t *testing.T) {
	second := strings.ReplaceAll(peer, "leaf1", "leaf2")
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n"
	layer2 := "apiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: l2}\n"
	r, err := NewResources(pool+peer+second+secret+advertisement+layer2, tor, networks)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"BGPPeer leaf1: peerAddress: 10.0.0.1 is replaced by 10.65.4.254, the lab's",
		"BGPPeer leaf1: peerASN: 65001 is replaced by 64524, the lab's",
		"BGPPeer leaf1: myASN: 65000 is replaced by 64513, the lab's",
		"BGPPeer leaf1: passwordSecret: map[name:s] is removed: the lab's router has no password",
		"BGPPeer leaf2: left out: the lab has one router, which stands for the first peer",
		"Secret s: left out: it is not one of MetalLB's types",
		"BGPAdvertisement a: peers: [leaf1] is removed: the lab has one router",
		"L2Advertisement l2: left out: the lab announces by BGP to one router",
	}
	if !slices.Equal(r.Replaced, want) {
		t.Errorf("replaced\n%s\nwant\n%s", strings.Join(r.Replaced, "\n"), strings.Join(want, "\n"))
	}
	var got []string
	for _, o := range r.Objects {
		got = append(got, o.GetNamespace()+"/"+o.GetName())
	}
	if !slices.Equal(got, []string{"metallb-system/p", "metallb-system/leaf1", "metallb-system/a"}) {
		t.Errorf("objects %v", got)
	}
	for path, want := range map[string]string{"peerAddress": "10.65.4.254", "holdTime": "9s"} {
		if value, _, _ := unstructured.NestedString(r.Objects[1].Object, "spec", path); value != want {
			t.Errorf("the peer's %s is %q, want %s", path, value, want)
		}
	}
}

func TestResourcesAreRefused(t *testing.T) {
	in := func(addresses string) string {
		return strings.Replace(pool, "192.0.2.0/28", addresses, 1) + peer + advertisement
	}
	for name, test := range map[string]struct{ text, err string }{
		"nothing":                     {"", "there is no IPAddressPool and no BGPPeer and no BGPAdvertisement: expected one at least of each"},
		"no advertisement":            {pool + peer, "there is no BGPAdvertisement: expected one at least of each"},
		"a pool in the nodes' range":  {in("10.65.4.100-10.65.4.120"), "IPAddressPool p: spec.addresses: 10.65.4.100-10.65.4.120 overlaps 10.65.4.0/24, a network of the lab"},
		"a pool around a network":     {in("10.64.0.0-10.66.0.0"), "IPAddressPool p: spec.addresses: 10.64.0.0-10.66.0.0 overlaps 10.65.4.0/24, a network of the lab"},
		"a prefix around all of them": {in("10.0.0.0/8"), "IPAddressPool p: spec.addresses: 10.0.0.0/8 overlaps 10.65.4.0/24, a network of the lab"},
		"a pool that is none":         {in("all"), `IPAddressPool p: spec.addresses: "all": expected a range such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9`},
	} {
		if _, err := NewResources(test.text, tor, networks); err == nil || err.Error() != test.err {
			t.Errorf("%s: got  %v\nwant %s", name, err, test.err)
		}
	}
}

func TestDefaultResources(t *testing.T) {
	r, err := DefaultResources(netip.MustParsePrefix("10.65.128.0/24"), tor)
	if err != nil || len(r.Objects) != 3 || r.Replaced != nil {
		t.Errorf("%v; %d objects, replaced %v", err, len(r.Objects), r.Replaced)
	}
}
