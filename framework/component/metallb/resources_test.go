package metallb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	lab = Network{
		Pool:   netip.MustParsePrefix("10.65.128.0/24"),
		Router: topology.BGPPeer{Address: netip.MustParseAddr("10.65.4.254"), ASN: 64524, ClusterASN: 64513},
		Link:   snapshot.AddressRange{First: netip.MustParseAddr("10.65.4.128"), Last: netip.MustParseAddr("10.65.4.143")}, Speakers: []string{"w1", "w2"},
		Networks: []netip.Prefix{netip.MustParsePrefix("10.65.4.0/24"), netip.MustParsePrefix("10.96.0.0/16")},
	}
)

const (
	pool          = "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p, namespace: metallb}\nspec: {addresses: [192.0.2.0/28]}\n---\n"
	peer          = "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: leaf1}\nspec: {myASN: 65000, peerASN: 65001, peerAddress: 10.0.0.1, password: hunter2, passwordSecret: {name: s}, holdTime: 9s}\n---\n"
	layer2        = "apiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: l2}\n---\n"
	advertisement = "apiVersion: metallb.io/v1beta1\nkind: BGPAdvertisement\nmetadata: {name: a}\nspec: {ipAddressPools: [p], aggregationLength: 32, peers: [leaf1]}\n---\n"
)

func namesOf(r Resources) string {
	return each.Joined(r.Objects, " ", (*unstructured.Unstructured).GetName)
}

func TestResources(t *testing.T) {
	second := strings.ReplaceAll(peer, "leaf1", "leaf2")
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n"
	r := must.Get(NewResources(pool+peer+second+secret+advertisement+layer2, lab))(t)
	want := []string{
		"BGPPeer leaf1: peerAddress: \"10.0.0.1\" is replaced by 10.65.4.254, the lab's",
		"BGPPeer leaf1: peerASN: 65001 is replaced by 64524, the lab's",
		"BGPPeer leaf1: myASN: 65000 is replaced by 64513, the lab's",
		"BGPPeer leaf1: password: a text is removed: the lab's router has no password",
		"BGPPeer leaf1: passwordSecret: a map of 1 is removed: the lab's router has no password",
		"BGPPeer leaf2: left out: the lab has one router, which stands for leaf1",
		"Secret s: left out: it is not one of MetalLB's types",
		"BGPAdvertisement a: peers: [\"leaf1\"] is removed: the lab has one router",
		"L2Advertisement: what answers by ARP is not exercised: each pool is announced by BGP as well, whose route a router prefers",
	}
	must.Equal(t, "replaced", want, r.Replaced)
	got := each.Of(r.Objects, func(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() })
	must.Equal(t, "objects", []string{"metallb-system/p", "metallb-system/leaf1", "metallb-system/a", "metallb-system/l2"}, got)
	must.Equal(t, "BGP, and no layer 2", [2]any{true, ""}, [2]any{r.BGP, r.Layer2})
	for path, want := range map[string]string{"peerAddress": "10.65.4.254", "holdTime": "9s"} {
		value, _, _ := unstructured.NestedString(r.Objects[1].Object, "spec", path)
		must.Equal(t, path, want, value)
	}
}

// What the user's objects lack is the lab's, so that its Service has an address that is announced.
func TestResourcesAreCompleted(t *testing.T) {
	const community = "apiVersion: metallb.io/v1beta1\nkind: Community\nmetadata: {name: c}\nspec: {communities: [{name: known, value: '1:2'}, 5:6]}\n---\n"
	second := strings.NewReplacer("name: p,", "name: q, labels: {a: b},", "192.0.2.0", "198.51.100.0").Replace(pool)
	own := func(kind, why string) string { return kind + ": " + why + ": the lab has its own" }
	off := "IPAddressPool p: autoAssign is replaced by false: no BGPAdvertisement announces it, and the lab's Service needs an address that one does"
	for _, test := range []struct {
		name, text string
		objects    string
		replaced   []string
	}{
		{"a pool alone", pool, "p lab lab", []string{own("BGPPeer", "there is none"), own("BGPAdvertisement", "none announces a pool of the manifests")}},
		{"no pool", strings.Replace(advertisement, "peers: [leaf1]", "localPref: 1", 1), "a lab lab lab", []string{
			"BGPAdvertisement a: ipAddressPools: the manifests have no IPAddressPool p",
			own("BGPPeer", "there is none"), own("IPAddressPool", "there is none"), own("BGPAdvertisement", "none announces a pool of the manifests"),
		}},
		{"a pool of IPv6", strings.Replace(pool, "192.0.2.0/28", "'2001:db8::/64'", 1) + defaults[kindPeer] + "\n---\n", "p lab lab lab", []string{
			own("IPAddressPool", "none has addresses of IPv4 for BGP"), own("BGPAdvertisement", "none announces a pool of the manifests"),
		}},
		{
			"one of two pools is announced, by its label",
			pool + strings.Replace(second, "spec: {", "spec: {autoAssign: false, ", 1) + defaults[kindPeer] + "\n---\n" + community +
				strings.NewReplacer("ipAddressPools: [p]", "ipAddressPoolSelectors: [{matchLabels: {a: b}}]", "peers: [leaf1]", "communities: [known, '3:4', other]").Replace(advertisement),
			"p q lab c a",
			[]string{
				"BGPAdvertisement a: communities: \"other\" is removed: no Community of the manifests has the alias", off,
				"IPAddressPool q: autoAssign: false is replaced by true: the lab's Service names no pool",
			},
		},
	} {
		r := must.Get(NewResources(test.text, lab))(t)
		must.Equal(t, test.name+": objects", test.objects, namesOf(r))
		must.Equal(t, test.name+": replaced", test.replaced, r.Replaced)
	}
}

// BFD of the peer's profile is also the router's, where both can have it. Of several peers the router
// stands for the first without graceful restart.
func TestBFD(t *testing.T) {
	const profile = "apiVersion: metallb.io/v1beta1\nkind: BFDProfile\nmetadata: {name: fast}\nspec: {receiveInterval: 150, detectMultiplier: 5, echoMode: true, minimumTtl: 254}\n---\n"
	with := strings.Replace(peer, "myASN", "bfdProfile: fast, ebgpMultiHop: true, myASN", 1)
	restarts := strings.NewReplacer("leaf1", "leaf0", "myASN", "enableGracefulRestart: true, myASN").Replace(peer)
	for _, test := range []struct {
		name, text string
		able       bool
		want       topology.BFD
		objects    string
		says       []string // some of what is replaced
	}{
		{
			"a profile", profile + restarts + with + advertisement, true, topology.BFD{Receive: 150 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 5}, "fast leaf1 a lab lab",
			[]string{
				"BGPPeer leaf0: left out: the lab has one router, which stands for leaf1", "BFDProfile fast: echoMode: true is removed: the lab's router sends no echoes",
				"BFDProfile fast: minimumTtl: a number is removed: the lab's router is one hop away",
				"BGPPeer leaf1: ebgpMultiHop: true is removed: the lab's router is on the nodes' network, and BFD over several hops is another",
			},
		},
		{
			"a profile that is elsewhere", with + advertisement, true, topology.BFD{Receive: 300 * time.Millisecond, Transmit: 300 * time.Millisecond, Multiplier: 3}, "fast leaf1 a lab lab",
			[]string{"BGPPeer leaf1: bfdProfile: the manifests have no BFDProfile fast", "BFDProfile: the manifests lack the peer's: the lab has its own"},
		},
		{"native BGP", with + profile, false, topology.BFD{}, "leaf1 lab lab",
			[]string{"BGPPeer leaf1: bfdProfile: \"fast\" is removed: MetalLB's native BGP has no BFD, and refuses the peer"}},
		{"a profile of no peer", peer + profile, true, topology.BFD{}, "leaf1 lab lab", []string{"BFDProfile fast: left out: the lab's one peer does not name it"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := lab
			n.HasBFD = test.able
			r := must.Get(NewResources(test.text, n))(t)
			must.Equal(t, "objects, BFD", [2]any{test.objects, test.want}, [2]any{namesOf(r), r.BFD})
			must.Contain(t, strings.Join(r.Replaced, "\n")+"\n", each.Of(test.says, func(says string) string { return says + "\n" })...)
		})
	}
}

// What is announced by ARP alone stays so. Pools of both kinds are told apart by their names.
func TestResourcesOfLayer2(t *testing.T) {
	second := strings.NewReplacer("name: p,", "name: q,", "192.0.2.0/28", "198.51.100.7-198.51.100.8").Replace(pool)
	l2For := func(name string) string {
		return strings.Replace(layer2, "{name: l2}", "{name: l2}\nspec: {ipAddressPools: ["+name+"], interfaces: [eno1], nodeSelectors: [{matchLabels: {a: b}}]}", 1)
	}
	own := func(kind, why string) string { return kind + ": " + why + ": the lab has its own" }
	dropped := []string{
		"L2Advertisement l2: interfaces: a list of 1 is removed: the lab's nodes have one interface",
		"L2Advertisement l2: nodeSelectors: a list of 1 is removed: w1 and w2 announce by ARP: the control plane keeps its link when that of the announcing node is cut",
	}
	missing := "L2Advertisement l2: ipAddressPools: the manifests have no IPAddressPool other"
	none := own("IPAddressPool", "none of those that are announced by ARP has addresses of IPv4")
	larger := "IPAddressPool q: addresses: 10.65.4.128-10.65.4.143 are added: the lab has 3 Services"
	off := "IPAddressPool q: autoAssign is replaced by false: no BGPAdvertisement announces it, and the lab's Service needs an address that one does"
	for _, test := range []struct {
		name, text, objects, pool string
		bgp                       bool
		replaced                  []string
	}{
		{"every pool", pool + layer2, "p l2", "p", false, nil},
		{"a pool of two addresses", second + l2For("q"), "q l2", "q", false, append(dropped, larger)},
		{"no pool", layer2, "l2 lab", "lab", false, []string{none}},
		{"a pool that is not there", l2For("other"), "l2 lab lab", "lab", false,
			append(dropped, missing, none, own("L2Advertisement", "none announces a pool of the manifests"))},
		{"one of each kind", second + l2For("q") + pool + strings.Replace(advertisement, ", peers: [leaf1]", "", 1) + defaults[kindPeer], "q l2 p a lab", "q", true,
			append(dropped, larger, off)},
		{"a peer, and no advertisement by BGP", second + l2For("q") + defaults[kindPeer], "q l2 lab lab lab", "q", true, append(dropped, larger,
			own("IPAddressPool", "none has addresses of IPv4 for BGP"), own("BGPAdvertisement", "none announces a pool of the manifests"), off)},
		{"a pool twice", strings.Replace(pool, "192.0.2.0/28", "192.0.2.0/24", 1) + pool + layer2, "p l2", "p", false,
			[]string{"IPAddressPool p: left out: a later one of the manifests has its name"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := must.Get(NewResources(test.text, lab))(t)
			for _, o := range r.Objects {
				selectors, _, _ := unstructured.NestedSlice(o.Object, "spec", "nodeSelectors")
				if o.GetKind() == kindLayer2 && !strings.Contains(fmt.Sprint(selectors), "values:[w1 w2]") {
					t.Errorf("%s is of the nodes %v", o.GetName(), selectors)
				}
				pools, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipAddressPools")
				if o.GetKind() == kindAdvertisement && slices.Contains(pools, test.pool) {
					t.Errorf("BGP announces %s", test.pool)
				}
			}
			must.Equal(t, "objects, layer 2, BGP", [3]any{test.objects, test.pool, test.bgp}, [3]any{namesOf(r), r.Layer2, r.BGP})
			must.Equal(t, "replaced", test.replaced, r.Replaced)
		})
	}
}

// On a dual lab the pool from which the lab's Service has its addresses has both families, and so has the one session.
func TestResourcesOfBothFamilies(t *testing.T) {
	both := strings.Replace(pool, "192.0.2.0/28", "192.0.2.0/28, '2001:db8::/120'", 1)
	six := strings.NewReplacer("leaf1", "leaf6", "10.0.0.1", "'fd00::1'", "password: hunter2, passwordSecret: {name: s}, ", "").Replace(peer)
	const carries = "BGPPeer leaf1: dualStackAddressFamily is true where a version of MetalLB has it: the lab's one session is in place of one of each family"
	added := "IPAddressPool p: addresses: fd5c:3f1e:a2d7::a41:8000/120 are added: the lab's Service has both families"
	for _, test := range []struct {
		name, text    string
		dual          bool
		both, carries bool
		says          string
	}{
		{"nothing", "", true, true, true, ""},
		{"a lab of IPv4", both + peer + six + advertisement, false, true, false, ""},
		{"a pool of both", both + peer + advertisement, true, true, false, ""},
		{"a peer of each", both + peer + six + advertisement, true, true, true, carries},
		{"a pool of IPv4", pool + peer + advertisement, true, false, false, added},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := lab
			n.Dual = test.dual
			r := must.Get(NewResources(test.text, n))(t)
			pools := slices.DeleteFunc(r.Of(kindPool), func(o *unstructured.Unstructured) bool { return !has(o, objects.IPv6) })
			must.Equal(t, "both, carries, pools", [3]any{test.both, test.carries, 1}, [3]any{r.BothFamilies, r.CarriesBoth, len(pools)})
			must.Contain(t, strings.Join(r.Replaced, "\n"), test.says)
		})
	}
}

func TestResourcesAreRefused(t *testing.T) {
	withRange := func(addresses string) string {
		return strings.Replace(pool, "192.0.2.0/28", addresses, 1) + peer + advertisement
	}
	for name, test := range map[string]struct{ text, err string }{
		"a ConfigMap": {
			"kind: ConfigMap\napiVersion: v1\nmetadata: {name: config}\ndata: {config: x}\n",
			"ConfigMap config: MetalLB reads it up to 0.12 alone: expected IPAddressPool with L2Advertisement, or with BGPPeer and BGPAdvertisement, as MetalLB's migration to CRDs makes of it",
		},
		"variables": {
			withRange("'${CIDR}', $net") + strings.ReplaceAll(peer, "65000", "$asn"),
			"no value is given for the variables CIDR (spec.addresses), net (spec.addresses): expected --set-var CIDR=VALUE for each, or --vars FILE with a ConfigMap or lines NAME=VALUE",
		},
		"a pool in the nodes' range":  {withRange("10.65.4.100-10.65.4.120"), "IPAddressPool p: spec.addresses: 10.65.4.100-10.65.4.120 overlaps 10.65.4.0/24, a network of the lab: expected --subnets with a prefix that the pools leave free"},
		"a pool around a network":     {withRange("10.64.0.0-10.66.0.0"), "IPAddressPool p: spec.addresses: 10.64.0.0-10.66.0.0 overlaps 10.65.4.0/24, a network of the lab: expected --subnets with a prefix that the pools leave free"},
		"a prefix around all of them": {withRange("10.0.0.0/8"), "IPAddressPool p: spec.addresses: 10.0.0.0/8 overlaps 10.65.4.0/24, a network of the lab: expected --subnets with a prefix that the pools leave free"},
		"a pool that is none":         {withRange("all"), `IPAddressPool p: spec.addresses: "all": expected a range such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9`},
	} {
		must.Equal(t, name, test.err, fmt.Sprint(must.Err(NewResources(test.text, lab))))
	}
}

func TestDefaultResources(t *testing.T) {
	r := must.Get(NewResources("", lab))(t)
	must.Equal(t, "objects, replaced", [2]int{3, 0}, [2]int{len(r.Objects), len(r.Replaced)})
}
