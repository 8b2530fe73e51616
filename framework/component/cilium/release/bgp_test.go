package release

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

const (
	userPeers = `apiVersion: cilium.io/v2alpha1
kind: CiliumBGPClusterConfig
metadata: {name: rack, namespace: kube-system}
spec:
  nodeSelector: {matchLabels: {rack: a}}
  bgpInstances:
  - name: "65001"
    localASN: 65001
    peers:
    - {name: tor-a, peerASN: 65000, peerAddress: 10.0.0.1, peerConfigRef: {name: careful}}
    - {name: tor-b, peerASN: 65000, peerAddress: "fd00::1", peerConfigRef: {name: plain}}
---
`
	userCareful = `apiVersion: cilium.io/v2
kind: CiliumBGPPeerConfig
metadata: {name: careful}
spec:
  authSecretRef: s3cret
  timers: {holdTimeSeconds: 9}
  transport: {peerPort: 1790}
  gracefulRestart: {enabled: true, restartTimeSeconds: 15}
  families: [{afi: ipv4, safi: unicast, advertisements: {matchLabels: {advertise: bgp}}}]
---
`
	userServices = `apiVersion: cilium.io/v2
kind: CiliumBGPAdvertisement
metadata: {name: services, labels: {advertise: bgp}}
spec:
  advertisements:
  - {advertisementType: Service, service: {addresses: [ClusterIP]}, selector: {}}
  - {advertisementType: Service, service: {addresses: [ExternalIP, LoadBalancerIP]}, selector: {matchExpressions: [{key: bgp, operator: In, values: [external]}]}}
---
`
	userPods = `apiVersion: cilium.io/v2
kind: CiliumBGPAdvertisement
metadata: {name: pods, labels: {advertise: bgp}}
spec: {advertisements: [{advertisementType: PodCIDR, attributes: {communities: {standard: ["65000:99"]}}}]}
---
`
	userPool = `apiVersion: cilium.io/v2alpha1
kind: CiliumLoadBalancerIPPool
metadata: {name: blue}
spec: {blocks: [{start: 192.0.2.10, stop: 192.0.2.20}], serviceSelector: {matchLabels: {color: blue}}}
---
`
)

var (
	userPlain = strings.NewReplacer("careful", "plain", "  gracefulRestart: {enabled: true, restartTimeSeconds: 15}\n", "").Replace(userCareful)
	onePeer   = strings.Replace(userPeers, "    - {name: tor-b, peerASN: 65000, peerAddress: \"fd00::1\", peerConfigRef: {name: plain}}\n", "", 1)
	ofLab     = Peering{Routers: []netip.Addr{netip.MustParseAddr("10.62.4.254")}, RoutersASN: 64524, ASN: 64513, LoadBalancers: netip.MustParsePrefix("10.62.128.0/24")}
	networks  = []netip.Prefix{netip.MustParsePrefix("10.62.4.0/24")}
)

// The session and the announcements are the user's; what the user's objects lack is the lab's.
func TestAdapt(t *testing.T) {
	const given, missing = "with graceful restart of BGP, as in the manifests", "without graceful restart of BGP, the vendor's default"
	own := func(kind, why string) string { return kind + ": " + why + ": the lab has its own" }
	replaced := []string{
		"CiliumBGPClusterConfig rack: nodeSelector: a map of 1 is removed: every node of the lab is a peer",
		"CiliumBGPClusterConfig rack: localASN: 65001 is replaced by 64513, the lab's",
		"CiliumBGPClusterConfig rack: peerASN: 65000 is replaced by 64524, the lab's",
		"CiliumBGPClusterConfig rack: peerAddress: \"10.0.0.1\" is replaced by 10.62.4.254, the lab's",
	}
	const helps = "graceful restart: the lab's router keeps the routes of a peer that asks for it (RFC 4724), and whether yours does is not tested"
	configured := []string{
		helps,
		"CiliumBGPPeerConfig careful: authSecretRef: a text is removed: the lab's router has no password",
		"CiliumBGPPeerConfig careful: transport.peerPort: 1790 is removed: the lab's router has the port 179",
	}
	noPods, noServices := own("CiliumBGPAdvertisement", "none announces pod ranges"), own("CiliumBGPAdvertisement", "none announces the address of a Service of type LoadBalancer")
	noPool := own("CiliumLoadBalancerIPPool", "none gives an address of IPv4 to the lab's Service")
	plain := strings.NewReplacer("careful", "plain").Replace(strings.Join(configured[1:], "\n"))
	sessions := "CiliumBGPPeerConfig careful: the lab has a session for each of its families, with the address of the router of that family"
	bothPool := strings.Replace(userPool, "blocks: [", "blocks: [{cidr: \"2001:db8::/120\"}, ", 1)
	for _, test := range []struct {
		name, text, under, labels, objects string
		replaced                           []string
	}{
		{
			"both families", onePeer + strings.Replace(userCareful, "families: [", "families: [{afi: ipv6, safi: unicast}, ", 1) + userServices + userPods + bothPool, given,
			"map[bgp:external color:blue]", "rack careful services pods blue relapse-v6-careful", slices.Concat(replaced, configured, []string{sessions}),
		},
		{
			"both families, and objects of IPv4", onePeer + userCareful + userServices + userPods + userPool, given, "map[bgp:external]",
			"rack careful services pods blue relapse-v6-careful relapse-lab",
			slices.Concat(replaced, configured, []string{"CiliumBGPPeerConfig careful: families: ipv6 unicast is added", sessions,
				own("CiliumLoadBalancerIPPool", "none gives addresses of both families to the lab's Service")}),
		},
		{
			"both families, and no peer", userPods, missing, "map[announced-by:lab]",
			"pods relapse-lab relapse-lab relapse-v6-relapse-lab relapse-pods relapse-services relapse-lab", nil,
		},

		{"everything", onePeer + userCareful + userServices + userPods + userPool, given, "map[bgp:external color:blue]",
			"rack careful services pods blue", slices.Concat(replaced, configured)},
		{
			"one of two peers without graceful restart", userPeers + userCareful + userPlain + userServices + userPods + userPool,
			"without graceful restart of BGP, as in the manifests", "map[bgp:external color:blue]", "rack careful plain services pods blue",
			slices.Concat([]string{"peers tor-a of rack: left out: the lab has one router, which stands for tor-b of rack, the first without graceful restart"}, replaced[:3],
				[]string{"CiliumBGPClusterConfig rack: peerAddress: \"fd00::1\" is replaced by 10.62.4.254, the lab's"}, strings.Split(plain, "\n")),
		},
		{
			"the peer's configuration is elsewhere", onePeer + userPods, missing + ": the manifests lack the peer's CiliumBGPPeerConfig", "map[announced-by:lab]",
			"rack pods relapse-lab relapse-pods relapse-services relapse-lab",
			slices.Concat([]string{"CiliumBGPClusterConfig rack: peerConfigRef: the manifests have no CiliumBGPPeerConfig careful"}, replaced,
				[]string{own("CiliumBGPPeerConfig", "the manifests have none of the peer"), "CiliumBGPAdvertisement pods: the families of relapse-lab do not select it", noPods, noServices, noPool}),
		},
		{
			"a pool alone, of the lab's Service's own", strings.Replace(userPool, "color: blue", "io.kubernetes.service.namespace: web", 1), missing, "map[announced-by:lab]",
			"blue relapse-lab relapse-lab relapse-pods relapse-services relapse-lab",
			[]string{own("CiliumBGPClusterConfig", "there is no peer"), own("CiliumBGPPeerConfig", "the manifests have none of the peer"), noPods, noServices, noPool},
		},
		{
			"a pool for any Service", strings.Replace(userPool, ", serviceSelector: {matchLabels: {color: blue}}", "", 1) + userCareful + userPods, given, "map[announced-by:lab]",
			"blue careful pods relapse-lab relapse-services",
			slices.Concat([]string{own("CiliumBGPClusterConfig", "there is no peer")}, configured, []string{noServices}),
		},
		{
			"families of IPv6 alone", onePeer + strings.Replace(userCareful, "afi: ipv4", "afi: ipv6", 1) + userServices + userPods + userPool, given,
			"map[bgp:external color:blue]", "rack careful services pods blue",
			slices.Concat(replaced, configured, []string{
				"CiliumBGPPeerConfig careful: families: ipv6 unicast is removed: the lab has IPv4 unicast alone", "CiliumBGPPeerConfig careful: families: ipv4 unicast is added",
			}),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			lab := ofLab
			lab.Dual = strings.HasPrefix(test.name, "both families")
			b := must.Get(lab.Adapt(test.text, networks))(t)
			names := each.Of(b.Objects, (*unstructured.Unstructured).GetName)
			must.Equal(t, "objects, restart, labels", [3]string{test.objects, test.under, test.labels}, [3]string{strings.Join(names, " "), b.Under, fmt.Sprint(b.Labels)})
			if test.replaced != nil {
				must.Equal(t, "replaced", test.replaced, b.Replaced)
			}
			b.announces(t, lab.Dual)
		})
	}
}

// announces fails the test unless the one session of each family announces pod ranges and Services with the labels.
func (b BGP) announces(t *testing.T, dual bool) {
	t.Helper()
	at := func(o *unstructured.Unstructured, path string) string {
		value, _ := chart.Get(o.Object, path)
		return fmt.Sprint(value)
	}
	cluster := b.Of(kindCluster)[0]
	peers := at(cluster, "spec.bgpInstances")
	counts := map[string]int{"peerAddress:10.62.4.254": 1, "peerAddress": 1}
	if dual {
		counts = map[string]int{"peerAddress:10.62.4.254": 1, "peerAddress:fd5c:3f1e:a2d7::a3e:4fe": 1, "peerAddress": 2}
	}
	for has, n := range counts {
		must.Equal(t, peers, n, strings.Count(peers, has))
	}
	all := ""
	for _, o := range b.Of(kindAdvertisement) {
		all += at(o, "spec.advertisements")
	}
	must.Contain(t, all, "PodCIDR", "LoadBalancerIP")
	for _, config := range b.Of(kindPeer) {
		has, lacks := "ipv4", "ipv6"
		if strings.HasPrefix(config.GetName(), "relapse-v6-") {
			has, lacks = lacks, has
		}
		families := at(config, "spec.families")
		if strings.Contains(peers, "name:"+config.GetName()+"]") && (!strings.Contains(families, "afi:"+has) || strings.Contains(families, lacks) || !strings.Contains(families, "matchLabels")) {
			t.Errorf("the families are %s", families)
		}
	}
}

func TestAdaptRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, err string }{
		"a policy": {
			"apiVersion: cilium.io/v2alpha1\nkind: CiliumBGPPeeringPolicy\nmetadata: {name: old}\n",
			"CiliumBGPPeeringPolicy old: a lab has no objects of this type, which 1.19 no longer reads: expected CiliumBGPClusterConfig, CiliumBGPPeerConfig and CiliumBGPAdvertisement in its place",
		},
		"a pool in the nodes' range": {
			strings.NewReplacer("192.0.2.10", "10.62.4.100", "192.0.2.20", "10.62.4.120").Replace(userPool),
			"CiliumLoadBalancerIPPool blue: spec.blocks: 10.62.4.100-10.62.4.120 overlaps 10.62.4.0/24, a network of the lab: expected --subnets with a prefix that the pools leave free",
		},
		"a variable": {
			userCareful + strings.Replace(userPods, "65000:99", "${COMMUNITY}", 1),
			"no value is given for the variables COMMUNITY (spec.advertisements): expected --set-var COMMUNITY=VALUE for each, or --vars FILE with a ConfigMap or lines NAME=VALUE",
		},
	} {
		must.Equal(t, name, test.err, fmt.Sprint(must.Err(ofLab.Adapt(test.text, networks))))
	}
}
