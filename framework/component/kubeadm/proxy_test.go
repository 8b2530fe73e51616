package kubeadm

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/must"
)

var podRange = netip.MustParsePrefix("10.63.64.0/20")

func TestProxyConfig(t *testing.T) {
	const kind = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, test := range []struct {
		name, text, mode string
		runs, err        string
		replaced         []string
		keeps            string // a field with its value
	}{
		{name: "none", runs: "iptables"},
		{name: "a mode alone", mode: "nftables", runs: "nftables"},
		{name: "the mode of the configuration", text: kind + "mode: ipvs\nipvs: {scheduler: sh}\n", runs: "ipvs", keeps: "scheduler: sh"},
		{name: "an empty mode, as kubeadm writes it", text: kind + `mode: ""`, mode: "nftables", runs: "nftables"},
		{
			name: "what is the user's own", runs: "iptables",
			text: kind + "clusterCIDR: 10.244.0.0/16\nhostnameOverride: n1\nconntrack: {maxPerCore: 32768, tcpEstablishedTimeout: 2h}\n" +
				"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\nmetricsBindAddress: 0.0.0.0:10249\n",
			replaced: []string{
				"clusterCIDR: 10.244.0.0/16 is replaced by 10.63.64.0/20: it is the range of the lab's pods",
				"hostnameOverride: n1 is replaced by nothing: the nodes are the lab's",
				"metricsBindAddress: 0.0.0.0:10249 is replaced by 127.0.0.1:10249: relapse asks kube-proxy there",
				"conntrack.maxPerCore: 32768 is replaced by 0: the machine's limit is not a node's to set",
				"detectLocalMode: BridgeInterface is replaced by ClusterCIDR: the lab's pods have other interfaces",
				"detectLocal: map[bridgeInterface:cni0] is replaced by nothing: the lab's pods have other interfaces",
			},
			keeps: "tcpEstablishedTimeout: 2h",
		},
		{name: "two modes", text: kind + "mode: ipvs\n", mode: "iptables", err: "its mode is ipvs, and the mode iptables was asked for"},
		{name: "no such mode", text: kind + "mode: userspace\n", err: `kube-proxy has no mode "userspace" on Linux; there are ["iptables" "nftables" "ipvs"]`},
		{name: "another kind", text: "kind: KubeletConfiguration", err: "its kind is KubeletConfiguration: expected KubeProxyConfiguration"},
		{name: "no kind", text: "mode: ipvs", err: "its kind is missing: expected KubeProxyConfiguration"},
		{name: "no YAML", text: "a: b: c", err: "it is not YAML: error converting YAML to JSON: yaml: mapping values are not allowed in this context"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := NewProxyConfig(test.text, test.mode, podRange)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("got  %v\nwant %s", err, test.err)
				}
				return
			}
			if err != nil || c.Mode != test.runs || !slices.Equal(c.Replaced, test.replaced) {
				t.Errorf("%v; mode %s, replaced\n%s", err, c.Mode, strings.Join(c.Replaced, "\n"))
			}
			var fields struct {
				Kind, Mode, ClusterCIDR string
				ClientConnection        struct{ Kubeconfig string }
			}
			must.NoError(t, yaml.Unmarshal([]byte(c.Text), &fields))
			if fields.Kind != "KubeProxyConfiguration" || fields.Mode != test.runs || fields.ClusterCIDR != podRange.String() ||
				fields.ClientConnection.Kubeconfig == "" || !strings.Contains(c.Text, test.keeps) {
				t.Errorf("kube-proxy gets\n%s", c.Text)
			}
		})
	}
}

func TestSyncedIn(t *testing.T) {
	for name, test := range map[string]struct {
		said   string
		synced bool
		err    string
	}{
		"1.31, before the first sync": {"iptables\n" + lastSync + " 0\n", false, ""},
		"1.31":                        {"iptables\n" + lastSync + " 1.7639e+09\n", true, ""},
		"by family, IPv6 first": {
			"iptables\n" + lastSync + `{ip_family="IPv6"} 1.7639e+09` + "\n" + lastSync + `{ip_family="IPv4"} 0` + "\n", false, "",
		},
		"another mode": {"ipvs\n" + lastSync + " 1\n", false, `kube-proxy runs in mode "ipvs": expected iptables`},
		"no metric":    {"iptables\n", false, "kube-proxy has no metric " + lastSync},
		"no number":    {"iptables\n" + lastSync + " x\n", false, "reading the metric"},
	} {
		synced, err := syncedIn(test.said, IPTables)
		if synced != test.synced || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %t, %v", name, synced, err)
		}
	}
}
