package configdrift

import (
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/topology/each"
)

// wordings are the words that a version takes as the value of a key. Two versions that both take a word read it in
// the same way, unless it has a question mark. A row holds up to the next row of its key. The source is the vendor's
// code that is named above the row, which was read in the versions of the table at both ends of each range.
var wordings = []struct{ key, from, words string }{
	// pkg/ipam/ipam.go: Unknown IPAM backend.
	{"ipam", "1.8.1", "hostscope-legacy kubernetes cluster-pool crd eni azure"},
	{"ipam", "1.10.0", "kubernetes cluster-pool crd eni azure alibabacloud"},
	{"ipam", "1.12.0", "kubernetes cluster-pool cluster-pool-v2beta crd eni azure alibabacloud delegated-plugin"},
	{"ipam", "1.14.0", "kubernetes cluster-pool cluster-pool-v2beta multi-pool crd eni azure alibabacloud delegated-plugin"},
	{"ipam", "1.15.0", "kubernetes cluster-pool multi-pool crd eni azure alibabacloud delegated-plugin"},
	// daemon/cmd/kube_proxy_replacement.go, and pkg/kpr/kpr.go from 1.18 on. From 1.19 on it is a bool.
	{"kube-proxy-replacement", "1.8.1", "probe partial strict disabled"},
	{"kube-proxy-replacement", "1.13.0", "partial strict disabled"},
	{"kube-proxy-replacement", "1.14.0", "partial strict disabled true false"},
	{"kube-proxy-replacement", "1.16.0", "true false"},
	// daemon/cmd/daemon_main.go, and pkg/datapath/connector/config.go from 1.20 on: invalid datapath mode.
	// 1.17 runs lb-only without Kubernetes only if it is told so.
	{"datapath-mode", "1.8.1", "veth ipvlan"},
	{"datapath-mode", "1.10.0", "veth ipvlan lb-only"},
	{"datapath-mode", "1.12.1", "veth lb-only"},
	{"datapath-mode", "1.16.0", "veth netkit netkit-l2 lb-only"},
	{"datapath-mode", "1.17.0", "veth netkit netkit-l2 lb-only?"},
	{"datapath-mode", "1.18.0", "veth netkit netkit-l2"},
	{"datapath-mode", "1.20.0", "auto veth netkit netkit-l2"},
	// pkg/option/config.go: invalid tunnel mode, invalid routing mode, Invalid identity allocation mode.
	{"tunnel", "1.8.1", "vxlan geneve disabled"},
	{"routing-mode", "1.14.0", "native tunnel"},
	{"identity-allocation-mode", "1.8.1", "kvstore crd"},
	{"identity-allocation-mode", "1.17.0", "kvstore crd doublewrite-readkvstore doublewrite-readcrd"},
	// pkg/option/config.go, and pkg/datapath/tunnel/tunnel.go from 1.15 on: invalid tunnel protocol.
	{"tunnel-protocol", "1.14.0", "vxlan geneve"},
	// pkg/loadbalancer/config.go. Before 1.18 they were not looked at without the proxy's replacement.
	{"bpf-lb-mode", "1.18.0", "snat dsr hybrid"},
	{"node-port-mode", "1.18.0", "snat dsr hybrid"},
	{"bpf-lb-algorithm", "1.18.0", "random maglev"},
	{"node-port-algorithm", "1.18.0", "random maglev"},
}

// worded is the last minor whose code was read for wordings.
const worded = "1.20"

// Worded are the keys whose values are judged, as far as they are words.
func Worded() []string {
	var keys []string
	for _, w := range wordings {
		keys = append(keys, w.key)
	}
	return each.Once(keys)
}

// words are the values that a version takes for a key; nil if they are not known.
func words(key, version string) []string {
	var all []string
	at := numbers(version)
	if byNumber(minor(version), worded) > 0 {
		return nil
	}
	for _, w := range wordings {
		if from := numbers(w.from); w.key == key && slices.Compare(from[:], at[:]) <= 0 {
			all = strings.Fields(w.words)
		}
	}
	return all
}

// takes reports whether a version takes a text for a key, and whether it reads it as the other versions do that take
// it. An empty text is taken: it is the default of some keys.
func takes(key, version string, o Option, raw string) (yes, same bool) {
	if kind := kindOf(o.Type); kind != "" {
		_, yes := parse(kind, raw)
		return yes, yes
	}
	all := words(key, version)
	same = slices.Contains(all, raw)
	return all == nil || raw == "" || same || slices.Contains(all, raw+"?"), same
}
