package labvalues

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

var lab = Lab{APIServer: netip.MustParseAddr("10.1.4.11"), Device: "eth0", Pods: netip.MustParsePrefix("10.1.64.0/20"), NodeMask: 24}

func adapt(t *testing.T, users string) (map[string]any, []chart.Replacement, error) {
	t.Helper()
	c := must.Get(chart.Load("../../../qualify/testdata/charts/1.18.0/chart"))(t)
	return Adapt(lab, []*chart.Chart{c}, must.Get(placeholder.Values{}.Map([]byte(users)))(t))
}

// always are the paths that are replaced whatever the user's values are.
var always = []string{
	`image.useDigest: true, the chart's default, is replaced by false: an image that is built here has another digest than the vendor's`,
	`ipam.operator.clusterPoolIPv4PodCIDRList: ["10.0.0.0/8"], the chart's default, is replaced by ["10.1.64.0/20"]: those are the pod addresses of the lab`,
	`envoy.enabled: null, the chart's default, is replaced by false: Envoy is not a Go program, and relapse does not build it`,
	`hubble.enabled: true, the chart's default, is replaced by false: Hubble needs certificates, and relapse does not build its relay and its UI`,
}

func TestAdapt(t *testing.T) {
	const devices = "that is the device of the lab's nodes"
	for _, test := range []struct {
		name, users string
		want        []string // besides always
	}{
		{"defaults", "{}", nil},
		{"the mode stays", "{routingMode: native, bgpControlPlane: {enabled: true}, encryption: {enabled: true, type: wireguard}}", nil},
		{"as the lab has it", "{devices: eth0, hubble: {enabled: true}}", nil},
		{"in place of kube-proxy", "{kubeProxyReplacement: true, k8sServiceHost: api.example.com, k8sServicePort: 443}", []string{
			`devices: "", the chart's default, is replaced by "eth0": ` + devices,
			`nodePort.directRoutingDevice: null, the chart's default, is replaced by "eth0": ` + devices,
			`k8sServiceHost: "api.example.com" is replaced by "10.1.4.11": that is the address of the lab's API server`,
			`k8sServicePort: 443 is replaced by 6443: that is the address of the lab's API server`,
		}},
		{"XDP", "{loadBalancer: {acceleration: best-effort, algorithm: maglev, mode: dsr}}", []string{
			`loadBalancer.acceleration: "best-effort" is replaced by "disabled": the lab's devices are veth pairs, which lose what XDP sends back to where it came from, such as all packets to Services with backends on other nodes`,
		}},
		{"of templates", "{cluster: {name: '${NAME}', id: '{{ id }}'}}", []string{
			`cluster.name: "${NAME}" is replaced by "lab": the lab has one cluster`,
			`cluster.id: "{{ id }}" is replaced by 0: the lab has one cluster`,
		}},
		{"of Talos", "{cgroup: {autoMount: {enabled: false}, hostRoot: /sys/fs/cgroup}, operator: {replicas: 5}}", []string{
			`cgroup: a map of 2 is replaced by the chart's default: a lab's nodes have their files and mounts in the usual places`,
			`operator.replicas: 5 is replaced by 2: the lab has three nodes`,
		}},
		{"as the chart has it", "{tolerations: [], operator: {replicas: 1}, extraArgs: [--debug], extraEnv: [{name: A, value: b}]}", nil},
		{"of their API server and their objects", "{extraArgs: [--debug, --mtu=1400, --direct-routing-device=eth1], tls: {ca: {key: hunter2}}, extraEnv: [{name: KUBERNETES_SERVICE_HOST, value: x}, {name: K, valueFrom: {}}]}", []string{
			`tls: a map of 1 is replaced by the chart's default: a lab has none of these namespaces, accounts, certificates, ConfigMaps and Secrets`,
			`extraEnv: a list of 2 is replaced by []: it names an address or an object that a lab does not have`,
			`extraArgs: a list of 3 is replaced by a list of 1: the lab has other devices, addresses and files`,
		}},
		{"of their cluster", "{tolerations: [{operator: Exists}], image: {repository: registry.example.com/cilium}}", []string{
			`image.repository: "registry.example.com/cilium" is replaced by the chart's default: the lab's registry has the images that relapse builds of each version, under the vendor's names`,
			`tolerations: a list of 1 is replaced by the chart's default: a lab's nodes have other labels, taints and priority classes`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, replaced, err := adapt(t, test.users)
			must.NoError(t, err)
			var got []string
			for _, r := range replaced {
				if text := r.String(); !slices.Contains(always, text) && r.Path != "hubble.enabled" {
					got = append(got, text)
				}
			}
			must.Equal(t, "", test.want, got)
			must.Equal(t, replaced, 0, len(always)+len(test.want)-len(replaced))
		})
	}
}

func TestAdaptLeavesTheUsersValues(t *testing.T) {
	users := must.Get(placeholder.Values{}.Map([]byte("{devices: bond0, hubble: {enabled: true}}")))(t)
	before := chart.Merge(users)
	c := must.Get(chart.Load("../../../qualify/testdata/charts/1.18.0/chart"))(t)
	_, _, err := Adapt(lab, []*chart.Chart{c}, users)
	must.NoError(t, err)
	must.Equal(t, "unchanged", before, users)
}

func TestAdaptWithout(t *testing.T) {
	users := map[string]any{"bpf": map[string]any{"datapathMode": "netkit-l2"}, "encryption": map[string]any{"enabled": true}}
	values, replaced, err := Adapt(lab, nil, users, "netkit", "geneve")
	must.NoError(t, err)
	mode, _ := chart.Get(values, "bpf.datapathMode")
	if encrypted, _ := chart.Get(values, "encryption.enabled"); mode != "veth" || encrypted != true || replaced[0].Why != "--without netkit" {
		t.Errorf("%v, %v", values, replaced)
	}
	must.Equal(t, "", []string{"netkit", "encryption", "geneve", "ipip"}, Features())
}

func TestPartsOf(t *testing.T) {
	var got []string
	for _, p := range PartsOf(map[string]any{"routingMode": "native", "l2announcements": map[string]any{"enabled": true}, "ipv6": map[string]any{"enabled": false}}) {
		got = append(got, p.String())
	}
	want := []string{
		"native routing: paths of the lab that use it: all; the ToR routes pods' addresses, by BGP or by static routes",
		"L2 announcements: paths of the lab that use it: address by ARP, and what happens when the answering node loses its link, with the policies of --manifests, or one of the lab's own",
	}
	must.Equal(t, "", want, got)
}

func TestLacking(t *testing.T) {
	_, _, err := adapt(t, "{ipam: {mode: azure}}")
	var lacking *LackingError
	if !errors.As(err, &lacking) || lacking.Path != "ipam.mode" || lacking.Value != "azure" {
		t.Errorf("got %v", err)
	}
}

// The values that concern a path are named if the lab has them as the user gave them.
func TestConcernsOf(t *testing.T) {
	values := func(text string) map[string]any { return must.Get(placeholder.Values{}.Map([]byte(text)))(t) }
	users := values("{loadBalancer: {mode: dsr, acceleration: native}, routingMode: native, tls: {ca: {key: hunter2}}, devices: [bond0]}")
	lab := values("{loadBalancer: {mode: dsr, acceleration: disabled}, routingMode: native}")
	got := map[string]string{}
	for _, c := range ConcernsOf(users, lab) {
		got[c.Path] = strings.Join(c.Values, ", ")
	}
	const routing = `routingMode "native"`
	want := map[string]string{
		"node port": `loadBalancer.mode "dsr", ` + routing, "LoadBalancer address": `loadBalancer.mode "dsr", ` + routing,
		"->outside": routing, "outside->": routing, "->": routing,
	}
	must.Equal(t, "", want, got)
}

func TestModeOf(t *testing.T) {
	for _, test := range []struct {
		name   string
		config map[string]string
		says   string
		needs  map[string]string
	}{
		{
			"tunnel", map[string]string{"routing-mode": "tunnel", "tunnel-protocol": "geneve", "ipam": "kubernetes", "kube-proxy-replacement": "false", "enable-ipv4-masquerade": "true"},
			"routing tunnel geneve, IPAM kubernetes, Services by kube-proxy, masquerade iptables", map[string]string{"geneve": "tunnelProtocol geneve"},
		},
		{
			"native", map[string]string{
				"routing-mode": "native", "tunnel-protocol": "vxlan", "ipam": "cluster-pool", "kube-proxy-replacement": "true",
				"enable-ipv4-masquerade": "true", "enable-bpf-masquerade": "true", "enable-bgp-control-plane": "true", "enable-wireguard": "true",
			},
			"routing native, IPAM cluster-pool, Services by Cilium in place of kube-proxy, masquerade bpf, BGP control plane, encryption wireguard",
			map[string]string{"wireguard": "encryption.type wireguard"},
		},
		{
			"netkit and Geneve", map[string]string{"routing-mode": "native", "ipam": "kubernetes", "kube-proxy-replacement": "true", "datapath-mode": "netkit", "bpf-lb-dsr-dispatch": "geneve"},
			"routing native, IPAM kubernetes, Services by Cilium in place of kube-proxy, masquerade none, Geneve for DSR, netkit",
			map[string]string{"netkit": "bpf.datapathMode netkit", "geneve": "loadBalancer.dsrDispatch geneve"},
		},
		{
			"IPsec and IPIP", map[string]string{"routing-mode": "native", "ipam": "cluster-pool", "enable-ipsec": "true", "bpf-lb-dsr-dispatch": "ipip"},
			"routing native, IPAM cluster-pool, Services by kube-proxy, masquerade none, encryption ipsec, IPIP",
			map[string]string{"xfrm": "encryption.type ipsec", "ipip": "IPIP"},
		},
	} {
		m := ModeOf(test.config)
		must.Equal(t, test.name, test.says, m.String())
		must.Equal(t, test.name+": devices", test.needs, m.Devices())
	}
}

func TestOf(t *testing.T) {
	got := Of(topology.Topology{Clusters: []topology.Cluster{{
		PodCIDR: lab.Pods, NodeMask: 24, Nodes: []topology.Node{{Links: []topology.Link{{Address: lab.APIServer}}}},
	}}})
	must.Equal(t, "", lab, got)
}
