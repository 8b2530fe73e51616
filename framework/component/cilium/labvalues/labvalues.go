// Package labvalues replaces, among a user's values of Cilium's Helm chart, what a lab cannot
// have, and says so. The mode that they choose stays theirs.
package labvalues

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology"
)

// Lab is what a lab has, as far as values name it.
type Lab struct {
	// APIServer is the address of the API server, which listens on port 6443.
	APIServer netip.Addr
	// Device is the nodes' network device.
	Device string
	// Pods are split into ranges of nodes, with a prefix length of NodeMask.
	Pods     netip.Prefix
	NodeMask int
}

// Of is what the first cluster of a topology has.
func Of(t topology.Topology) Lab {
	c := t.Clusters[0]
	return Lab{APIServer: c.Nodes[0].Links[0].Address, Device: "eth0", Pods: c.PodCIDR, NodeMask: c.NodeMask}
}

// apiPort is the port of kind's API servers.
const apiPort = 6443

// LackingError says that no replacement is possible, because the value is the mode itself.
type LackingError struct {
	Path, Value string
	Lacks       string // what a lab lacks: a clause with a subject
}

func (e *LackingError) Error() string { return fmt.Sprintf("%s %s: %s", e.Path, e.Value, e.Lacks) }

// adapter collects replacements.
type adapter struct {
	charts   []*chart.Chart
	values   map[string]any
	replaced []chart.Replacement
}

// get returns the value that applies at a path, and whether it is the user's.
func (a *adapter) get(path string) (value any, users bool) {
	if value, there := chart.Get(a.values, path); there {
		return value, true
	}
	for i := len(a.charts) - 1; i >= 0; i-- { // the new chart's first
		if value, there := a.charts[i].Default(path); there {
			return value, false
		}
	}
	return nil, false
}

// is reports whether a value is a certain one, of whatever type: kubeProxyReplacement takes
// true and "true".
func (a *adapter) is(path, text string) bool {
	value, _ := a.get(path)
	return fmt.Sprint(value) == text
}

// set replaces what is not that value already.
func (a *adapter) set(path string, value any, why string) {
	was, users := a.get(path)
	if text(was) == text(value) {
		return
	}
	chart.Set(a.values, path, value)
	a.replaced = append(a.replaced, chart.Replacement{Path: path, Was: text(was), Is: text(value), Users: users, Why: why})
}

// remove leaves a value of the user to the chart's default.
func (a *adapter) remove(path, why string) {
	was, there := chart.Get(a.values, path)
	if !there {
		return
	}
	chart.Remove(a.values, path)
	a.replaced = append(a.replaced, chart.Replacement{Path: path, Was: text(was), Users: true, Why: why})
}

// off switches off what is switched on.
func (a *adapter) off(path, why string) {
	if value, _ := a.get(path); value != nil && fmt.Sprint(value) == "true" {
		a.set(path, false, why)
	}
}

func text(value any) string {
	out, err := json.Marshal(value)
	if err != nil { // not of a YAML file
		return fmt.Sprint(value)
	}
	return string(out)
}

// Adapt returns the user's values for a lab, and what was replaced. The charts are those of
// all versions that get the values, the lowest first. The error is a *LackingError.
func Adapt(lab Lab, charts []*chart.Chart, users map[string]any) (map[string]any, []chart.Replacement, error) {
	a := &adapter{charts: charts, values: chart.Merge(users)}
	if err := a.lacking(); err != nil {
		return nil, nil, err
	}
	a.images()
	a.nodes()
	a.addresses(lab)
	a.besides()
	return a.values, a.replaced, nil
}

// lacking finds modes that need something outside the cluster.
func (a *adapter) lacking() error {
	for _, l := range []struct{ path, value, lacks string }{
		{"ipam.mode", "eni", "it takes addresses from AWS, which a lab does not reach"},
		{"ipam.mode", "azure", "it takes addresses from Azure, which a lab does not reach"},
		{"ipam.mode", "alibabacloud", "it takes addresses from Alibaba Cloud, which a lab does not reach"},
		{"ipam.mode", "delegated-plugin", "it needs another vendor's IPAM plugin, which a lab does not have"},
		{"ipam.mode", "crd", "it needs an operator that writes the nodes' addresses, which a lab does not have"},
		{"eni.enabled", "true", "it needs AWS's API, which a lab does not reach"},
		{"azure.enabled", "true", "it needs Azure's API, which a lab does not reach"},
		{"alibabacloud.enabled", "true", "it needs Alibaba Cloud's API, which a lab does not reach"},
		{"identityAllocationMode", "kvstore", "it needs an etcd of its own, which a lab does not have"},
		{"etcd.enabled", "true", "it needs an etcd of its own, which a lab does not have"},
		{"cni.chainingMode", "aws-cni", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "flannel", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "generic-veth", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "portmap", "it needs the CNI plugin portmap, which a lab does not have"},
	} {
		if a.is(l.path, l.value) {
			return &LackingError{Path: l.path, Value: l.value, Lacks: l.lacks}
		}
	}
	return nil
}

// images keeps the vendor's own names and tags: relapse builds those images.
func (a *adapter) images() {
	const why = "the lab's registry has the images that relapse builds of each version, under the vendor's names"
	for _, program := range []string{"", "operator."} {
		for _, part := range []string{"repository", "tag", "digest", "genericDigest", "override", "suffix", "pullPolicy"} {
			a.remove(program+"image."+part, why)
		}
		a.set(program+"image.useDigest", false, "an image that is built here has another digest than the vendor's")
	}
	a.remove("imagePullSecrets", why)
	a.remove("operator.image.pullSecrets", why)
}

// nodes leaves out what names nodes of the user, or files and volumes on them.
func (a *adapter) nodes() {
	for _, program := range []string{"", "operator."} {
		for _, part := range []string{"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"} {
			a.remove(program+part, "a lab's nodes have other labels, taints and priority classes")
		}
		for _, part := range []string{"resources", "initResources"} {
			a.remove(program+part, "a lab's nodes are smaller")
		}
		for _, part := range []string{"extraVolumes", "extraVolumeMounts", "extraHostPathMounts", "extraContainers", "extraInitContainers"} {
			a.remove(program+part, "a lab has no such volumes and images")
		}
	}
	a.remove("MTU", "it is detected from the lab's own devices")
	if a.is("loadBalancer.acceleration", "native") {
		a.set("loadBalancer.acceleration", "disabled", "the lab's devices are veth pairs, and not NICs with native XDP")
	}
}

// addresses gives the lab's own devices and addresses.
func (a *adapter) addresses(lab Lab) {
	const deviceWhy = "that is the device of the lab's nodes"
	replacesProxy := a.is("kubeProxyReplacement", "true")
	// Without a choice the agent takes the device of the default route, and a lab's nodes
	// may have a default route with several next hops.
	if _, users := a.get("devices"); users || replacesProxy || a.is("bpf.masquerade", "true") {
		a.set("devices", lab.Device, deviceWhy)
	}
	if _, users := a.get("nodePort.directRoutingDevice"); users || replacesProxy {
		a.set("nodePort.directRoutingDevice", lab.Device, deviceWhy)
	}
	if _, users := a.get("egressMasqueradeInterfaces"); users {
		a.set("egressMasqueradeInterfaces", lab.Device, deviceWhy)
	}
	a.remove("l2podAnnouncements.interface", deviceWhy)
	a.remove("l2podAnnouncements.interfacePattern", deviceWhy)
	a.remove("nodePort.addresses", "the lab's nodes have other addresses")

	const apiWhy = "that is the address of the lab's API server"
	a.remove("k8sServiceHostRef", apiWhy)
	a.remove("k8s.apiServerURLs", apiWhy)
	a.remove("k8sServiceLookupConfigMapName", apiWhy)
	a.remove("k8sServiceLookupNamespace", apiWhy)
	if host, users := a.get("k8sServiceHost"); replacesProxy || users && host != "" {
		a.set("k8sServiceHost", lab.APIServer.String(), apiWhy)
		a.set("k8sServicePort", apiPort, apiWhy)
	}

	const podsWhy = "those are the pod addresses of the lab"
	if a.is("ipam.mode", "cluster-pool") {
		a.set("ipam.operator.clusterPoolIPv4PodCIDRList", []any{lab.Pods.String()}, podsWhy)
		a.set("ipam.operator.clusterPoolIPv4MaskSize", lab.NodeMask, podsWhy)
	}
	if pools, users := a.get("ipam.operator.autoCreateCiliumPodIPPools"); users && a.is("ipam.mode", "multi-pool") {
		if pools, is := pools.(map[string]any); is && len(pools) > 0 {
			a.set("ipam.operator.autoCreateCiliumPodIPPools", map[string]any{
				"default": map[string]any{"ipv4": map[string]any{"cidrs": []any{lab.Pods.String()}, "maskSize": lab.NodeMask}},
			}, podsWhy)
		}
	}
	if native, users := a.get("ipv4NativeRoutingCIDR"); users && native != "" {
		a.set("ipv4NativeRoutingCIDR", lab.Pods.String(), podsWhy)
	}
	a.remove("ipv6NativeRoutingCIDR", "the lab's networks are of IPv4")
	a.off("ipv6.enabled", "the lab's networks are of IPv4")
	for _, own := range [][2]string{
		{"devices", lab.Device}, {"direct-routing-device", lab.Device},
		{"cluster-pool-ipv4-cidr", lab.Pods.String()}, {"cluster-pool-ipv4-mask-size", fmt.Sprint(lab.NodeMask)},
		{"ipv4-native-routing-cidr", lab.Pods.String()},
	} {
		if _, users := a.get("extraConfig." + own[0]); users {
			a.set("extraConfig."+own[0], own[1], "the lab has other devices and addresses")
		}
	}
}

// besides switches off what needs other images, or other programs of the cluster.
func (a *adapter) besides() {
	const envoyWhy = "Envoy is not a Go program, and relapse does not build it"
	a.set("envoy.enabled", false, envoyWhy)
	for _, path := range []string{
		"l7Proxy", "envoyConfig.enabled", "ingressController.enabled", "gatewayAPI.enabled",
	} {
		a.off(path, envoyWhy)
	}
	if a.is("loadBalancer.l7.backend", "envoy") {
		a.set("loadBalancer.l7.backend", "disabled", envoyWhy)
	}
	a.off("hubble.enabled", "Hubble needs certificates, and relapse does not build its relay and its UI")
	for _, path := range []string{
		"hubble.relay.enabled", "hubble.ui.enabled", "clustermesh.useAPIServer", "clustermesh.config.enabled",
		"nodeinit.enabled", "preflight.enabled", "authentication.mutual.spire.enabled",
		"encryption.ztunnel.enabled", "standaloneDnsProxy.enabled",
	} {
		a.off(path, "relapse does not build its images")
	}
	for _, path := range []string{
		"prometheus.serviceMonitor.enabled", "operator.prometheus.serviceMonitor.enabled", "envoy.prometheus.serviceMonitor.enabled",
		"hubble.metrics.serviceMonitor.enabled",
	} {
		a.off(path, "a lab has no Prometheus operator")
	}
}

// Mode is what a rendered ConfigMap cilium-config chooses.
type Mode struct {
	// Routing is native or tunnel. Tunnel is the protocol, such as vxlan.
	Routing string `json:"routing"`
	Tunnel  string `json:"tunnel,omitempty"`
	IPAM    string `json:"ipam"`
	// KubeProxy is set if kube-proxy keeps the Services.
	KubeProxy bool `json:"kube_proxy"`
	// Masquerade is iptables, bpf or none.
	Masquerade string `json:"masquerade"`
	BGP        bool   `json:"bgp"`
	// Encryption is wireguard, ipsec or empty. IPIP is set if Services use that
	// encapsulation.
	Encryption string `json:"encryption,omitempty"`
	IPIP       bool   `json:"ipip,omitempty"`
}

// ModeOf reads a ConfigMap.
func ModeOf(config map[string]string) Mode {
	on := func(key string) bool { return config[key] == "true" }
	m := Mode{
		Routing: config["routing-mode"], IPAM: config["ipam"], KubeProxy: !on("kube-proxy-replacement"), BGP: on("enable-bgp-control-plane"),
		Masquerade: "none", IPIP: on("enable-ipip-termination") || config["bpf-lb-dsr-dispatch"] == "ipip",
	}
	if m.Routing != "native" {
		m.Tunnel = config["tunnel-protocol"]
	}
	switch {
	case on("enable-ipv4-masquerade") && on("enable-bpf-masquerade"):
		m.Masquerade = "bpf"
	case on("enable-ipv4-masquerade"):
		m.Masquerade = "iptables"
	}
	switch {
	case on("enable-wireguard"):
		m.Encryption = "wireguard"
	case on("enable-ipsec"):
		m.Encryption = "ipsec"
	}
	return m
}

func (m Mode) String() string {
	parts := []string{"routing " + strings.TrimSpace(m.Routing+" "+m.Tunnel), "IPAM " + m.IPAM}
	if m.KubeProxy {
		parts = append(parts, "Services by kube-proxy")
	} else {
		parts = append(parts, "Services by Cilium in place of kube-proxy")
	}
	parts = append(parts, "masquerade "+m.Masquerade)
	if m.BGP {
		parts = append(parts, "BGP control plane")
	}
	if m.Encryption != "" {
		parts = append(parts, "encryption "+m.Encryption)
	}
	if m.IPIP {
		parts = append(parts, "IPIP")
	}
	return strings.Join(parts, ", ")
}

// Devices are the kinds of network devices, and xfrm for IPsec, that the mode needs of the
// kernel, with the value that asks for each.
func (m Mode) Devices() map[string]string {
	need := map[string]string{}
	if m.Tunnel != "" {
		need[m.Tunnel] = "tunnelProtocol " + m.Tunnel
	}
	switch m.Encryption {
	case "wireguard":
		need["wireguard"] = "encryption.type wireguard"
	case "ipsec":
		need["xfrm"] = "encryption.type ipsec"
	}
	if m.IPIP {
		need["ipip"] = "IPIP"
	}
	return need
}
