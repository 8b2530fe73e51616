// Package labvalues replaces, among a user's values of Cilium's Helm chart, what a lab cannot have, and says so. The
// mode that the values choose stays.
package labvalues

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
)

// First is the first version that runs whole. 1.13 and 1.14 were not tried.
const First = "1.15.0"

// Lab is what a lab has, as far as values name it.
type Lab struct {
	// APIServer is the address of the API server, which listens on port 6443.
	APIServer netip.Addr
	// Device is the nodes' network device.
	Device string
	// Pods are the cluster's range, and NodeMask is the prefix length of each node's part of it.
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

// equals compares a value as a text: kubeProxyReplacement takes true and "true".
func (a *adapter) equals(path, text string) bool {
	value, _ := a.get(path)
	return fmt.Sprint(value) == text
}

func (a *adapter) set(path string, value any, why string) {
	was, users := a.get(path)
	if chart.Text(was) == chart.Text(value) {
		return
	}
	chart.Set(a.values, path, value)
	a.replaced = append(a.replaced,
		chart.Replacement{Path: path, Was: chart.Shown(path, was), Is: chart.Shown(path, value), Users: users, Why: why})
}

// remove leaves the values at paths to the chart's defaults, and notes a replacement unless they are the same.
func (a *adapter) remove(why string, paths ...string) {
	for _, path := range paths {
		was, there := chart.Get(a.values, path)
		if !there {
			continue
		}
		chart.Remove(a.values, path)
		usual, _ := a.get(path)
		both := map[string]any{"": usual}
		if chart.Text(chart.Merge(both, map[string]any{"": was})) != chart.Text(both) {
			a.replaced = append(a.replaced, chart.Replacement{Path: path, Was: chart.Shown(path, was), Users: true, Why: why})
		}
	}
}

func (a *adapter) off(why string, paths ...string) {
	for _, path := range paths {
		if a.equals(path, "true") {
			a.set(path, false, why)
		}
	}
}

// Adapt returns the user's values for a lab without some of Features, and what was replaced. charts are the charts of
// all versions that get the values, the lowest first. The error is a *LackingError.
func Adapt(lab Lab, charts []*chart.Chart, users map[string]any, without ...string) (map[string]any, []chart.Replacement, error) {
	a := &adapter{charts: charts, values: chart.Merge(users)}
	for _, f := range features {
		if slices.Contains(without, f.name) && a.equals(f.path, f.value) {
			a.set(f.path, f.instead, "--without "+f.name)
		}
	}
	if err := a.lacking(); err != nil {
		return nil, nil, err
	}
	a.images()
	a.nodes()
	a.addresses(lab)
	a.besides()
	return a.values, a.replaced, nil
}

// features are what a user may go without where the kernel lacks it: the value that asks for it, and its substitute.
var features = []struct {
	name, path, value string
	instead           any
}{
	{"netkit", "bpf.datapathMode", "netkit", "veth"},
	{"netkit", "bpf.datapathMode", "netkit-l2", "veth"},
	{"encryption", "encryption.enabled", "true", false},
	{"encryption", "encryption.strictMode.enabled", "true", false},
	{"encryption", "encryption.strictMode.egress.enabled", "true", false},
	{"encryption", "encryption.strictMode.ingress.enabled", "true", false},
	{"geneve", "loadBalancer.dsrDispatch", "geneve", "opt"},
	{"geneve", "tunnelProtocol", "geneve", "vxlan"},
	{"ipip", "loadBalancer.dsrDispatch", "ipip", "opt"},
	{"ipip", "enableIPIPTermination", "true", false},
}

// Features are the names of what a user may go without.
func Features() []string {
	var all []string
	for _, f := range features {
		all = append(all, f.name)
	}
	return slices.Compact(all)
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
		{"ipv4.enabled", "false", "the lab's networks are of IPv4, or of both families"},
		{"identityAllocationMode", "doublewrite-readkvstore", "it needs an etcd of its own, which a lab does not have"},
		{"identityAllocationMode", "doublewrite-readcrd", "it needs an etcd of its own, which a lab does not have"},
		{"identityAllocationMode", "kvstore", "it needs an etcd of its own, which a lab does not have"},
		{"etcd.enabled", "true", "it needs an etcd of its own, which a lab does not have"},
		{"cni.chainingMode", "aws-cni", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "flannel", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "generic-veth", "it needs another vendor's CNI plugin, which a lab does not have"},
		{"cni.chainingMode", "portmap", "it needs the CNI plugin portmap, which a lab does not have"},
	} {
		if a.equals(l.path, l.value) {
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
			a.remove(why, program+"image."+part)
		}
		a.set(program+"image.useDigest", false, "an image that is built here has another digest than the vendor's")
	}
	a.remove(why, "imagePullSecrets", "operator.image.pullSecrets")
}

// others are values that a lab leaves to the chart's defaults, with the reason.
var others = []struct {
	why   string
	paths []string
}{
	{"a lab's nodes have other labels, taints and priority classes", []string{
		"nodeSelector", "tolerations", "affinity", "priorityClassName", "operator.nodeSelector", "operator.tolerations", "operator.affinity",
		"operator.topologySpreadConstraints", "operator.priorityClassName",
	}},
	{"a lab's nodes are smaller", []string{"resources", "initResources", "cni.resources", "operator.resources", "bpf.mapDynamicSizeRatio"}},
	{"a lab has no such volumes and images", []string{
		"extraVolumes", "extraVolumeMounts", "extraHostPathMounts", "extraContainers", "extraInitContainers",
		"operator.extraVolumes", "operator.extraVolumeMounts", "operator.extraHostPathMounts", "operator.extraContainers",
		"operator.extraInitContainers",
	}},
	{"a lab's nodes have their files and mounts in the usual places", []string{
		"cgroup", "sysctlfix", "bpf.root", "bpf.autoMount", "cni.binPath", "cni.confPath", "cni.hostConfDirMountPath", "cni.logFile",
		"daemon.runPath", "hubble.socketPath", "kubeConfigPath", "containerRuntime", "podSecurityContext", "operator.podSecurityContext",
		"securityContext.seLinuxOptions", "operator.securityContext", "dnsPolicy", "operator.dnsPolicy",
	}},
	{"a lab's CNI is Cilium alone", []string{"cni.install", "cni.uninstall", "cni.customConf", "cni.configMap",
		"cni.configMapKey", "cni.confFileMountPath", "cni.readCniConf", "cni.chainingTarget"}},
	{"a lab has none of these namespaces, accounts, certificates, ConfigMaps and Secrets", []string{
		"namespaceOverride", "serviceAccounts", "rbac", "tls", "prometheus.tls", "operator.prometheus.tls", "bgpControlPlane.secretsNamespace",
		"envoyConfig.secretsNamespace", "gatewayAPI.secretsNamespace", "ingressController.secretsNamespace",
		"daemon.configSources", "daemon.allowedConfigOverrides", "daemon.blockedConfigOverrides", "extraObjects",
	}},
	{"an upgrade is that of all of Cilium", []string{"agent", "operator.enabled", "operator.skipCRDCreation", "sleepAfterInit"}},
	{"the lab's Service has an address of Cilium's pool, and a node port of the usual range",
		[]string{"enableLBIPAM", "defaultLBServiceIPAM", "nodePort.range"}},
}

// nodes leaves out values that name the user's nodes, or files, volumes and objects that they have.
func (a *adapter) nodes() {
	for _, o := range others {
		a.remove(o.why, o.paths...)
	}
	a.remove("it is detected from the lab's own devices", "MTU")
	for _, mode := range []string{"native", "best-effort"} {
		if a.equals("loadBalancer.acceleration", mode) {
			a.set("loadBalancer.acceleration", "disabled", "the lab's devices are veth pairs, which lose "+
				"what XDP sends back to where it came from, such as all packets to Services with backends on other nodes")
		}
	}
	if a.equals("policyEnforcementMode", "always") {
		a.set("policyEnforcementMode", "default", "the lab's own traffic has to pass")
	}
	// Each operator needs a node of its own: two on one node would need the same port.
	if replicas, users := a.get("operator.replicas"); users && fmt.Sprint(replicas) != "1" && fmt.Sprint(replicas) != "2" {
		a.set("operator.replicas", 2, "the lab has three nodes")
	}
	for _, program := range []string{"", "operator."} {
		a.without(program+"extraEnv", "it names an address or an object that a lab does not have", func(item any) bool {
			env, _ := item.(map[string]any)
			return env["valueFrom"] != nil || strings.HasPrefix(fmt.Sprint(env["name"]), "KUBERNETES_SERVICE_")
		})
		a.without(program+"extraArgs", "the lab has other devices, addresses and files", func(item any) bool {
			flag, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprint(item), "-"), "=")
			return slices.Contains(ofMachine, flag) || slices.Contains(ofLab, flag)
		})
	}
	for _, key := range ofMachine {
		a.remove("the lab has other devices, addresses and files", "extraConfig."+key)
	}
}

// ofMachine are keys of cilium-config, and flags, that name what a cluster's machines have.
var ofMachine = []string{
	"mtu", "bpf-lb-acceleration", "ipv6-range", "ipv4-range", "enable-ipv6", "ipv6-native-routing-cidr",
	"cluster-pool-ipv6-cidr", "cluster-pool-ipv6-mask-size", "k8s-api-server", "k8s-api-server-urls",
	"k8s-kubeconfig-path", "cgroup-root", "bpf-root", "ipv4-node", "ipv6-node", "state-dir", "lib-dir",
	"egress-masquerade-interfaces", "node-port-range", "enable-k8s", "config-dir",
}

var ofLab = []string{"devices", "direct-routing-device", // the lab has its own values of these keys
	"cluster-pool-ipv4-cidr", "cluster-pool-ipv4-mask-size", "ipv4-native-routing-cidr"}

func (a *adapter) without(path, why string, others func(item any) bool) {
	value, _ := chart.Get(a.values, path)
	items, _ := value.([]any)
	if left := slices.DeleteFunc(slices.Clone(items), others); len(left) < len(items) {
		a.set(path, left, why)
	}
}

func (a *adapter) addresses(lab Lab) {
	const deviceWhy = "that is the device of the lab's nodes"
	replacesProxy := a.equals("kubeProxyReplacement", "true")
	// Without a choice the agent takes the device of the default route, which may have several next hops in a lab.
	if _, users := a.get("devices"); users || replacesProxy || a.equals("bpf.masquerade", "true") {
		a.set("devices", lab.Device, deviceWhy)
	}
	if _, users := a.get("nodePort.directRoutingDevice"); users || replacesProxy {
		a.set("nodePort.directRoutingDevice", lab.Device, deviceWhy)
	}
	if _, users := a.get("egressMasqueradeInterfaces"); users {
		a.set("egressMasqueradeInterfaces", lab.Device, deviceWhy)
	}
	a.remove(deviceWhy, "l2podAnnouncements.interface", "l2podAnnouncements.interfacePattern") // the first is the chart's default
	a.remove("the lab's nodes have other addresses", "nodePort.addresses")

	for _, own := range []chart.Setting{{Path: "cluster.name", Value: "lab"}, {Path: "cluster.id", Value: int64(0)}} {
		if value, users := a.get(own.Path); users && len(placeholder.In(value)) > 0 {
			a.set(own.Path, own.Value, "the lab has one cluster")
		}
	}
	const apiWhy = "that is the address of the lab's API server"
	a.remove(apiWhy, "k8sServiceHostRef", "k8s.apiServerURLs", "k8sServiceLookupConfigMapName", "k8sServiceLookupNamespace")
	if host, users := a.get("k8sServiceHost"); replacesProxy || users && host != "" {
		a.set("k8sServiceHost", lab.APIServer.String(), apiWhy)
		a.set("k8sServicePort", apiPort, apiWhy)
	}

	const podsWhy = "those are the pod addresses of the lab"
	six := topology.IPv6.Prefix(lab.Pods).String()
	if a.equals("ipam.mode", "cluster-pool") {
		a.set("ipam.operator.clusterPoolIPv4PodCIDRList", []any{lab.Pods.String()}, podsWhy)
		a.set("ipam.operator.clusterPoolIPv4MaskSize", lab.NodeMask, podsWhy)
	}
	if a.equals("ipam.mode", "multi-pool") {
		pool := map[string]any{"ipv4": map[string]any{"cidrs": []any{lab.Pods.String()}, "maskSize": lab.NodeMask}}
		if a.equals("ipv6.enabled", "true") {
			pool["ipv6"] = map[string]any{"cidrs": []any{six}, "maskSize": lab.NodeMask + topology.V6Bits}
		}
		a.set("ipam.operator.autoCreateCiliumPodIPPools", map[string]any{"default": pool}, podsWhy)
	}
	for _, own := range []chart.Setting{
		{Path: "ipv4NativeRoutingCIDR", Value: lab.Pods.String()}, {Path: "ipv6NativeRoutingCIDR", Value: six},
		{Path: "ipam.operator.clusterPoolIPv6PodCIDRList", Value: []any{six}},
		{Path: "ipam.operator.clusterPoolIPv6MaskSize", Value: lab.NodeMask + topology.V6Bits},
	} {
		if value, users := a.get(own.Path); users && value != "" {
			a.set(own.Path, own.Value, podsWhy)
		}
	}
	if !a.equals("ipv6.enabled", "true") {
		a.remove("the lab's networks are of IPv4: the values lack ipv6.enabled: true",
			"k8s.requireIPv6PodCIDR", "enableIPv6BIGTCP", "nat46x64Gateway", "underlayProtocol")
	}
	for i, own := range []string{lab.Device, lab.Device, lab.Pods.String(), fmt.Sprint(lab.NodeMask), lab.Pods.String()} {
		if _, users := a.get("extraConfig." + ofLab[i]); users {
			a.set("extraConfig."+ofLab[i], own, "the lab has other devices and addresses")
		}
	}
}

// besides switches off what needs other images, or other programs of the cluster.
func (a *adapter) besides() {
	const envoyWhy = "Envoy is not a Go program, and relapse does not build it"
	a.set("envoy.enabled", false, envoyWhy)
	a.off(envoyWhy, "l7Proxy", "envoyConfig.enabled", "ingressController.enabled", "gatewayAPI.enabled")
	if a.equals("loadBalancer.l7.backend", "envoy") {
		a.set("loadBalancer.l7.backend", "disabled", envoyWhy)
	}
	a.off("Hubble needs certificates, and relapse does not build its relay and its UI", "hubble.enabled")
	a.off("relapse does not build its images",
		"hubble.relay.enabled", "hubble.ui.enabled", "clustermesh.useAPIServer", "clustermesh.config.enabled",
		"nodeinit.enabled", "preflight.enabled", "authentication.mutual.spire.enabled",
		"encryption.ztunnel.enabled", "standaloneDnsProxy.enabled", "clustermesh.mcsapi.enabled", "clustermesh.enableMCSAPISupport")
	a.off("a lab has no Prometheus operator", "prometheus.serviceMonitor.enabled", "operator.prometheus.serviceMonitor.enabled",
		"envoy.prometheus.serviceMonitor.enabled", "hubble.metrics.serviceMonitor.enabled")
	a.off("a lab has no Grafana, and no namespace for its dashboards",
		"dashboards.enabled", "operator.dashboards.enabled", "hubble.metrics.dashboards.enabled")
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
	// Encryption is wireguard, ipsec or empty. IPIP is set if Services use that encapsulation.
	Encryption string `json:"encryption,omitempty"`
	IPIP       bool   `json:"ipip,omitempty"`
	// Netkit is set if pods have netkit devices, and Geneve if Services use that encapsulation.
	Netkit bool `json:"netkit,omitempty"`
	Geneve bool `json:"geneve,omitempty"`
}

// ModeOf reads a ConfigMap.
func ModeOf(config map[string]string) Mode {
	on := func(key string) bool { return config[key] == "true" }
	m := Mode{
		Routing: config["routing-mode"], IPAM: config["ipam"], KubeProxy: !on("kube-proxy-replacement"), BGP: on("enable-bgp-control-plane"),
		Masquerade: "none", IPIP: on("enable-ipip-termination") || config["bpf-lb-dsr-dispatch"] == "ipip",
		Netkit: strings.HasPrefix(config["datapath-mode"], "netkit"), Geneve: config["bpf-lb-dsr-dispatch"] == "geneve",
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
	for _, besides := range []struct {
		name    string
		enabled bool
	}{{"Geneve for DSR", m.Geneve}, {"IPIP", m.IPIP}, {"netkit", m.Netkit}} {
		if besides.enabled {
			parts = append(parts, besides.name)
		}
	}
	return strings.Join(parts, ", ")
}

// Devices are the kinds of devices, or xfrm, that the mode needs of the kernel, with the value that asks for each.
func (m Mode) Devices() map[string]string {
	all := map[string]string{}
	need := func(needed bool, kind, by string) {
		if needed {
			all[kind] = by
		}
	}
	need(m.Tunnel != "", m.Tunnel, "tunnelProtocol "+m.Tunnel)
	need(m.Encryption == "wireguard", "wireguard", "encryption.type wireguard")
	need(m.Encryption == "ipsec", "xfrm", "encryption.type ipsec")
	need(m.IPIP, "ipip", "IPIP")
	need(m.Netkit, "netkit", "bpf.datapathMode netkit")
	need(m.Geneve, "geneve", "loadBalancer.dsrDispatch geneve")
	return all
}

// Part is a part of Cilium that values switch on, and what a lab does with it.
type Part struct {
	Name string `json:"name"`
	// Says names the paths of an upgrade's lab that use it, if it Runs, or why none does.
	Says string `json:"says"`
	Runs bool   `json:"runs"`

	paths, values []string // a path has one of the values or, without values, true
}

// DualStack is the part that only a lab of two families has.
const DualStack = "dual stack"

// Parts are in the order of how often published values switch them on.
var Parts = []Part{
	{"kube-proxy replacement", "cluster IP, node port, and a new Service on each node",
		true, []string{"kubeProxyReplacement"}, []string{"true"}},
	{"native routing", "all; the ToR routes pods' addresses, by BGP or by static routes", true, []string{"routingMode"}, []string{"native"}},
	{"DSR", "node port, whose endpoint is on another node, and the address of a LoadBalancer",
		true, []string{"loadBalancer.mode"}, []string{"dsr", "hybrid"}},
	{"BGP control plane", "outside to pod, the address of a LoadBalancer, and a new Service announced by each node",
		true, []string{"bgpControlPlane.enabled"}, nil},
	{"Hubble", "it needs certificates and images that relapse does not build", false, []string{"hubble.enabled"}, nil},
	{"bandwidth manager, BBR", "a container has no net.core.default_qdisc, and the agent switches it off",
		false, []string{"bandwidthManager.enabled"}, nil},
	{"netkit", "all of pods, on a kernel that has it (6.7 or newer)", true, []string{"bpf.datapathMode"}, []string{"netkit", "netkit-l2"}},
	{"L2 announcements", "address by ARP, and what happens when the answering node loses its link, " +
		"with the policies of --manifests, or one of the lab's own",
		true, []string{"l2announcements.enabled"}, nil},
	{"local redirect policies", "the lab has no such policy", false, []string{"localRedirectPolicies.enabled", "localRedirectPolicy"}, nil},
	{"Gateway API and Ingress", "Envoy is not a Go program, and relapse does not build it",
		false, []string{"gatewayAPI.enabled", "ingressController.enabled"}, nil},
	{DualStack, "each kind, once by IPv4 and once by IPv6", true, []string{"ipv6.enabled"}, nil},
	{"WireGuard", "pod to pod, other node, on a kernel that has it", true, []string{"encryption.enabled"}, nil},
	{"IPAM multi-pool", "all of pods, with one pool", true, []string{"ipam.mode"}, []string{"multi-pool"}},
	{"cluster mesh", "the lab has one cluster", false, []string{"clustermesh.useAPIServer", "clustermesh.config.enabled"}, nil},
	{"egress gateway", "the lab has no such policy", false, []string{"egressGateway.enabled"}, nil},
	{"host firewall", "the lab has no policy of nodes", false, []string{"hostFirewall.enabled"}, nil},
}

func (p Part) String() string {
	if p.Runs {
		return fmt.Sprintf("%s: paths of the lab that use it: %s", p.Name, p.Says)
	}
	return fmt.Sprintf("%s: no path of the lab uses it: %s", p.Name, p.Says)
}

// PartsOf are the parts that the user's values switch on.
func PartsOf(users map[string]any) []Part {
	return slices.DeleteFunc(slices.Clone(Parts), func(p Part) bool {
		return !slices.ContainsFunc(p.paths, func(path string) bool {
			value, _ := chart.Get(users, path)
			return slices.Contains(p.values, fmt.Sprint(value)) || p.values == nil && fmt.Sprint(value) == "true"
		})
	})
}

// Concern are values of a user that decide how Cilium carries the traffic of some paths.
type Concern struct {
	// Path is a part of the names of the paths' probes, such as "node port".
	Path string `json:"path"`
	// Values are such as "loadBalancer.mode dsr".
	Values []string `json:"values"`
}

// decide are the values that decide how paths are made, by parts of the names of probes, the narrowest first.
var decide = []struct {
	path   string
	values []string
}{
	{"node port", []string{"kubeProxyReplacement", "loadBalancer", "nodePort", "externalIPs", "bpf.masquerade",
		"bpf.datapathMode", "routingMode", "tunnelProtocol", "autoDirectNodeRoutes"}},
	{"LoadBalancer address", []string{"kubeProxyReplacement", "loadBalancer", "nodePort", "bpf.masquerade",
		"bpf.datapathMode", "routingMode", "tunnelProtocol", "bgpControlPlane"}},
	{"cluster IP", []string{"kubeProxyReplacement", "loadBalancer.algorithm", "socketLB", "bpf.lbSock"}},
	{"->outside", []string{"enableIPv4Masquerade", "bpf.masquerade", "ipMasqAgent", "egressGateway", "hostFirewall", "routingMode"}},
	{"outside->", []string{"bgpControlPlane", "hostFirewall", "routingMode", "endpointRoutes", "bpf.hostLegacyRouting", "bpf.datapathMode"}},
	{"->", []string{"routingMode", "tunnelProtocol", "autoDirectNodeRoutes", "endpointRoutes", "encryption",
		"bpf.datapathMode", "bpf.hostLegacyRouting", "bandwidthManager"}},
}

// ConcernsOf are the user's values that a lab has as they are, by the paths that they concern.
func ConcernsOf(users, lab map[string]any) []Concern {
	var all []Concern
	for _, d := range decide {
		c := Concern{Path: d.path}
		for _, path := range d.values {
			if value, there := chart.Get(users, path); there {
				c.Values = append(c.Values, scalars(path, value, lab)...)
			}
		}
		if len(c.Values) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// scalars are the single values below a path that the lab has as well.
func scalars(path string, value any, lab map[string]any) []string {
	switch value := value.(type) {
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(value)) {
			all = append(all, scalars(path+"."+key, value[key], lab)...)
		}
		return all
	case nil, []any:
		return nil
	}
	if has, there := chart.Get(lab, path); !there || chart.Text(has) != chart.Text(value) {
		return nil
	}
	if shown := chart.Shown(path, value); shown == chart.Text(value) { // or it may be a secret
		return []string{path + " " + shown}
	}
	return nil
}
