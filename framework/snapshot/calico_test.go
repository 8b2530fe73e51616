package snapshot

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestNodeAnnotations(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        Node
		err         string
	}{
		{name: "none"},
		{name: "Calico", annotations: map[string]string{
			"projectcalico.org/IPv4Address": "172.29.0.11/24", "projectcalico.org/RouteReflectorClusterID": "244.0.0.1",
		}, want: Node{Calico: CalicoNode{Address: netip.MustParsePrefix("172.29.0.11/24"), RouteReflector: "244.0.0.1"}}},
		{name: "Calico, without a subnet", annotations: map[string]string{"projectcalico.org/IPv4Address": "172.29.0.11"},
			want: Node{Calico: CalicoNode{Address: netip.MustParsePrefix("172.29.0.11/32")}}},
		{name: "kube-router", annotations: map[string]string{"kube-router.io/bgp-local-addresses": "172.29.0.11, 172.30.0.11"},
			want: Node{KubeRouterAddresses: []netip.Addr{netip.MustParseAddr("172.29.0.11"), netip.MustParseAddr("172.30.0.11")}}},
		{name: "a bad address", annotations: map[string]string{"projectcalico.org/IPv4Address": "here"}, err: "projectcalico.org/IPv4Address: ParseAddr"},
		{name: "a bad list", annotations: map[string]string{"kube-router.io/bgp-local-addresses": "172.29.0.11,"}, err: "kube-router.io/bgp-local-addresses: ParseAddr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := nodeList.DeepCopy()
			list.Items = list.Items[:1]
			list.Items[0].Annotations = c.annotations
			nodes, err := listedNodes.items(t.Context(), clusterOf(t, map[string]http.HandlerFunc{nodesPath: protobuf(t, list)}))
			if c.err != "" {
				must.Fail(t, err, `node "master2": annotation `+c.err)
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", c.want, Node{Calico: nodes[0].Calico, KubeRouterAddresses: nodes[0].KubeRouterAddresses})
		})
	}
}

func calicoPod(name, node string, env ...corev1.EnvVar) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "calico-node"}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{
			{Name: "sidecar", Env: []corev1.EnvVar{{Name: "IP", Value: "none"}}},
			{Name: "calico-node", Env: env},
		}},
	}
}

func TestCalicoAgents(t *testing.T) {
	leaving := calicoPod("calico-node-old", "node1", corev1.EnvVar{Name: "IP", Value: "autodetect"})
	leaving.DeletionTimestamp = &metav1.Time{Time: created}
	other := calicoPod("another-program", "node1")
	other.Labels["k8s-app"] = "another"
	list := &corev1.PodList{Items: []corev1.Pod{
		calicoPod("calico-node-b", "node2",
			corev1.EnvVar{Name: "IP", Value: "autodetect"}, corev1.EnvVar{Name: "IP_AUTODETECTION_METHOD", Value: "kubernetes-internal-ip"},
			corev1.EnvVar{Name: "AUTODETECT_POLL_INTERVAL", Value: "2s"}, corev1.EnvVar{Name: "FELIX_HEALTHENABLED", Value: "true"}),
		calicoPod("calico-node-a", "node1",
			corev1.EnvVar{Name: "AUTODETECT_POLL_INTERVAL", Value: "often"},
			corev1.EnvVar{Name: "IP_AUTODETECTION_METHOD", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "method"}}}),
		leaving,
		calicoPod("calico-node-pending", ""),
		other,
	}}
	asked := ""
	cluster := clusterOf(t, map[string]http.HandlerFunc{podsPath: func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("fieldSelector")
		protobuf(t, list)(w, r)
	}})
	must.Equal(t, "", []CalicoAgent{
		{Node: "node1", Pod: "kube-system/calico-node-a", Poll: time.Minute, Unknown: []string{"IP_AUTODETECTION_METHOD"}},
		{Node: "node2", Pod: "kube-system/calico-node-b", IP: "autodetect", Method: "kubernetes-internal-ip", Poll: 2 * time.Second},
	}, must.Get(cluster.calicoAgents(t.Context()))(t))
	must.Equal(t, "asked for", notEnded, asked)
}

const (
	blockPath = "/apis/crd.projectcalico.org/v1/ipamblocks"
	blockList = `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlockList","metadata":{},"items":[
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-64-26","creationTimestamp":"2026-01-02T03:04:05Z"},
  "spec":{"cidr":"10.1.0.64/26","affinity":"host:worker","allocations":[0,null,1,2,3,9],"unallocated":[1],"attributes":[
   {"handle_id":"k8s-pod-network.1","secondary":{"namespace":"shop","node":"worker","pod":"cart-0"}},
   {"handle_id":"ipip-tunnel-addr-other","secondary":{"node":"other","type":"ipipTunnelAddress"}},
   {"handle_id":"k8s-pod-network.2","secondary":{"namespace":"shop","node":"third","pod":"cart-1"}},
   {"handle_id":"windows-reserved-ipam-handle"}]}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-0-26"},"spec":{"cidr":"10.1.0.0/26","affinity":"virtual:load-balancer"}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-128-26"},"spec":{"cidr":"10.1.0.128/26"}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-192-26"},"spec":{"cidr":"10.1.0.192/26","affinity":"host:worker","deleted":true}}]}`
)

func TestCalicoBlocks(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   []CalicoBlock
		err    string // what the error contains
	}{
		{"blocks", answer(http.StatusOK, blockList), []CalicoBlock{
			{CIDR: prefix("10.1.0.0/26")},
			{CIDR: prefix("10.1.0.64/26"), Node: "worker", Lent: []LentAddress{{netip.MustParseAddr("10.1.0.66"), "other"}, {netip.MustParseAddr("10.1.0.67"), "third"}}, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
			{CIDR: prefix("10.1.0.128/26")},
		}, ""},
		{"a cluster without Calico", answer(http.StatusNotFound, "404 page not found\n"), nil, ""},
		{"a range that is none", answer(http.StatusOK, strings.Replace(blockList, "10.1.0.64/26", "10.1.0.64", 1)), nil,
			`IPAMBlock "10-1-0-64-26": spec.cidr: netip.ParsePrefix("10.1.0.64"): no '/'`},
		{"forbidden", answer(http.StatusForbidden, forbidden), nil,
			"listing IPAMBlocks: list on ipamblocks in crd.projectcalico.org is not permitted: not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clusterOf(t, map[string]http.HandlerFunc{blockPath: test.answer})
			got, err := listedBlocks.items(t.Context(), c)
			must.Equal(t, "", test.want, got, byValue)
			fails(t, err, test.err)
		})
	}
}

func calicoList(kind string, items ...string) http.HandlerFunc {
	return answer(http.StatusOK, `{"apiVersion":"crd.projectcalico.org/v1","kind":"`+kind+`List","metadata":{},"items":[`+strings.Join(items, ",")+`]}`)
}

func calicoObject(kind, name, spec string) string {
	return `{"apiVersion":"crd.projectcalico.org/v1","kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
}

// What Calico is told of BGP: pools, peers and the ranges of Services.
func TestCalicoBGP(t *testing.T) {
	node := func(name string, labels map[string]string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	reflector := node("a", nil)
	reflector.Annotations = map[string]string{"projectcalico.org/labels": `{"route-reflector":"true"}`}
	const path = "/apis/crd.projectcalico.org/v1/"
	read := func(answers map[string]http.HandlerFunc) *cluster {
		answers[nodesPath] = protobuf(t, &corev1.NodeList{Items: []corev1.Node{
			node("b", nil), reflector, node("control", map[string]string{corev1.LabelNodeExcludeBalancers: ""}),
		}})
		return clusterOf(t, answers)
	}
	c := read(map[string]http.HandlerFunc{
		path + "ippools": calicoList("IPPool",
			calicoObject("IPPool", "storage", `{"cidr":"10.50.0.0/16","blockSize":26,"disableBGPExport":true,"ipipMode":"Never","nodeSelector":"all()"}`),
			calicoObject("IPPool", "default-ipv4-ippool", `{"cidr":"10.48.0.0/16","blockSize":26,"natOutgoing":true,"vxlanMode":"Never","nodeSelector":"all()"}`)),
		path + "bgppeers": calicoList("BGPPeer",
			calicoObject("BGPPeer", "tor", `{"peerIP":"10.4.94.253","asNumber":64512,"nodeSelector":"!has(node.kubernetes.io/exclude-from-external-load-balancers)","filters":["no-tunnels"]}`),
			calicoObject("BGPPeer", "tor6", `{"peerIP":"[2001:db8::1]:179","asNumber":64512}`),
			calicoObject("BGPPeer", "tor7", `{"node":"b","peerIP":"10.4.94.7"}`),
			calicoObject("BGPPeer", "reflectors", `{"nodeSelector":"has(node.kubernetes.io/exclude-from-external-load-balancers)","peerSelector":"route-reflector == 'true'"}`)),
		path + "bgpconfigurations": calicoList("BGPConfiguration",
			calicoObject("BGPConfiguration", "node.b", `{"logSeverityScreen":"Info"}`),
			calicoObject("BGPConfiguration", "default", `{"asNumber":64513,"nodeToNodeMeshEnabled":false,"serviceLoadBalancerIPs":[{"cidr":"192.0.2.0/24"},{"cidr":"2001:db8::/112"}],"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}]}`)),
		"/apis/cilium.io/v2/ciliumbgpclusterconfigs": answer(http.StatusOK, `{"kind":"AList","apiVersion":"cilium.io/v2","items":[
			{"metadata":{"name":"all"},"spec":{}},
			{"metadata":{"name":"rack"},"spec":{"nodeSelector":{"matchLabels":{"rack":"a"},"matchExpressions":[{"key":"edge","operator":"DoesNotExist"}]}}}]}`),
		"/apis/metallb.io/v1beta1/bgpadvertisements": answer(http.StatusOK, `{"kind":"AList","apiVersion":"metallb.io/v1beta1","items":[{"metadata":{"name":"edge","namespace":"metallb-system"},
			"spec":{"nodeSelectors":[{"matchLabels":{"rack":"a"}},{"matchExpressions":[{"key":"node.kubernetes.io/exclude-from-external-load-balancers","operator":"Exists"}]}]}}]}`),
		"/apis/metallb.io/v1beta1/ipaddresspools": answer(http.StatusOK, `{"kind":"AList","apiVersion":"metallb.io/v1beta1","items":[]}`),
	})
	must.Equal(t, "pools", []CalicoPool{
		{Name: "default-ipv4-ippool", CIDR: netip.MustParsePrefix("10.48.0.0/16"), NATOutgoing: true},
		{Name: "storage", CIDR: netip.MustParsePrefix("10.50.0.0/16"), NotExported: true},
	}, must.Get(calicoIPPools.items(t.Context(), c))(t), byValue)
	must.Equal(t, "peers", []CalicoPeer{
		{Name: "reflectors", Nodes: []string{"control"}},
		{Name: "tor", Address: netip.MustParseAddr("10.4.94.253"), Nodes: []string{"a", "b"}, Filters: []string{"no-tunnels"}},
		{Name: "tor6", Address: netip.MustParseAddr("2001:db8::1"), Nodes: []string{"a", "b", "control"}},
		{Name: "tor7", Address: netip.MustParseAddr("10.4.94.7"), Nodes: []string{"b"}},
	}, must.Get(c.calicoPeers(t.Context()))(t), byValue)
	const excluded = "node.kubernetes.io/exclude-from-external-load-balancers"
	must.Equal(t, "selections", []NodeSelection{
		{Kind: "BGPAdvertisement", Name: "metallb-system/edge", Field: "spec.nodeSelectors", Nodes: []string{"control"}, Labels: []string{excluded, "rack"}, Needs: []string{excluded}},
		{Kind: "BGPPeer", Name: "reflectors", Field: "spec.nodeSelector", Nodes: []string{"control"}, Labels: []string{excluded}, Needs: []string{excluded}},
		{Kind: "BGPPeer", Name: "reflectors", Field: "spec.peerSelector", Of: []string{"control"}, Nodes: []string{"a"}, Labels: []string{"route-reflector"}, Needs: []string{"route-reflector"}},
		{Kind: "BGPPeer", Name: "tor", Field: "spec.nodeSelector", Nodes: []string{"a", "b"}, Labels: []string{excluded}},
		{Kind: "BGPPeer", Name: "tor6", Field: "spec.nodeSelector", Nodes: []string{"a", "b", "control"}},
		{Kind: "BGPPeer", Name: "tor7", Field: "spec.nodeSelector", Nodes: []string{"b"}},
		{Kind: "CiliumBGPClusterConfig", Name: "all", Field: "spec.nodeSelector", Nodes: []string{"a", "b", "control"}},
		{Kind: "CiliumBGPClusterConfig", Name: "rack", Field: "spec.nodeSelector", Labels: []string{"edge", "rack"}},
	}, must.Get(c.nodeSelections(t.Context()))(t), byValue)
	at := netip.MustParseAddr
	must.Equal(t, "advertisements", []BGPAdvertisement{
		{Name: "serviceLoadBalancerIPs 192.0.2.0/24", Speaker: CalicoBGP, Ranges: []AddressRange{{at("192.0.2.0"), at("192.0.2.255")}}, Nodes: []string{"a", "b"}, AggregationLength: 24},
		{Name: "serviceLoadBalancerIPs 2001:db8::/112", Speaker: CalicoBGP, Ranges: []AddressRange{{at("2001:db8::"), at("2001:db8::ffff")}}, Nodes: []string{"a", "b"}, AggregationLengthV6: 112},
	}, must.Get(c.calicoAdvertisements(t.Context()))(t), byValue)
	for name, answers := range map[string]map[string]http.HandlerFunc{
		`IPPool a: spec.cidr: netip.ParsePrefix("10.0.0.0")`: {
			path + "ippools": calicoList("IPPool", calicoObject("IPPool", "a", `{"cidr":"10.0.0.0"}`)),
		},
		"listing BGPPeers: list on bgppeers in crd.projectcalico.org is not permitted: not allowed": {
			path + "bgppeers": answer(http.StatusForbidden, forbidden),
		},
		"BGPConfiguration default: spec.serviceLoadBalancerIPs": {path + "bgpconfigurations": calicoList("BGPConfiguration",
			calicoObject("BGPConfiguration", "default", `{"serviceLoadBalancerIPs":[{"cidr":"users"}]}`))},
	} {
		c := read(answers)
		must.Fail(t, errors.Join(must.Err(calicoIPPools.items(t.Context(), c)), must.Err(c.calicoPeers(t.Context())),
			must.Err(c.bgpAdvertisements(t.Context()))), name)
	}
	must.Equal(t, "without Calico", nil, must.Get(calicoIPPools.items(t.Context(), read(map[string]http.HandlerFunc{})))(t))
}

// MetalLB leaves Services with a class to others, unless it gave the address itself.
func TestServes(t *testing.T) {
	for _, test := range []struct {
		name, speaker string
		service       Service
		want          bool
	}{
		{"no class", "", Service{}, true},
		{"another one's class", "", Service{Class: "kube-vip.io/kube-vip-class"}, false},
		{"the class that MetalLB was told", "", Service{Class: "metallb", MetalLBPool: "users"}, true},
		{"Cilium's own class", CiliumBGP, Service{Class: ciliumBGPClass}, true},
	} {
		must.Equal(t, test.name, test.want, (BGPAdvertisement{Speaker: test.speaker}).Serves(test.service))
	}
}

// Selectors of Calico, by what they say of labels (libcalico-go/lib/selector).
func TestCalicoSelector(t *testing.T) {
	labels := map[string]string{"rack": "a-1", "role": "worker", "node.kubernetes.io/x": ""}
	for text, want := range map[string]bool{
		"all()": true, "global()": false, "has(rack)": true, "!has(rack)": false, "has(node.kubernetes.io/x)": true,
		"rack == 'a-1'": true, `rack == "b"`: false, "rack != 'b'": true, "zone != 'b'": true, "zone == ''": false,
		"rack in {'b', 'a-1'}": true, "rack not in {'b','c'}": true, "zone not in {'b'}": true, "zone in {}": false,
		"rack contains '-'": true, "rack starts with 'a'": true, "rack startswith 'a'": true, "rack endswith 'a'": false, "rack notin {'b'}": true, " ": true, "rack ends with 'a'": false,
		"has(zone) || rack == 'a-1' && role == 'worker'":  true,
		"(has(zone) || has(rack)) && !(role == 'worker')": false,
	} {
		test, _, err := calicoSelector(text)
		must.NoError(t, err)
		must.Equal(t, text, want, test(labels))
	}
	for _, text := range []string{"rack", "rack = 'a'", "has(rack", "rack == 'a' rack", "rack in {'a'", "(all()", "has(rack) &&", "rack == '"} {
		_, _, err := calicoSelector(text)
		must.Equal(t, text+": no error", false, err == nil)
	}
}
