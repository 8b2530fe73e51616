package kubeadm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Modes of kube-proxy on Linux.
const (
	IPTables = "iptables"
	NFTables = "nftables"
	IPVS     = "ipvs"
)

// ProxyModes are all modes of kube-proxy on Linux. The first is the default.
var ProxyModes = []string{IPTables, NFTables, IPVS}

// ProxyConfig is a KubeProxyConfiguration, as kube-proxy of a lab gets it.
type ProxyConfig struct {
	Text string
	Mode string
	// Replaced are what the lab has in place of the user's fields, a clause each.
	Replaced []string
}

// metricsAddress is where kube-proxy is asked for its mode and its syncs: its default.
const metricsAddress = "127.0.0.1:10249"

// NewProxyConfig adapts a KubeProxyConfiguration to a lab whose pods are in a range. An empty text is kubeadm's own
// configuration. mode applies if the configuration names none; empty: kube-proxy's default.
func NewProxyConfig(text, mode string, pods netip.Prefix) (ProxyConfig, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		return ProxyConfig{}, fmt.Errorf("it is not YAML: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if kind := fields["kind"]; text != "" && kind != "KubeProxyConfiguration" {
		return ProxyConfig{}, fmt.Errorf("its kind is %v: expected KubeProxyConfiguration", cmp.Or(kind, any("missing")))
	}
	named, _ := fields["mode"].(string)
	if named != "" && mode != "" && named != mode {
		return ProxyConfig{}, fmt.Errorf("its mode is %s, and the mode %s was asked for", named, mode)
	}
	c := ProxyConfig{Mode: cmp.Or(named, mode, ProxyModes[0])}
	if !slices.Contains(ProxyModes, c.Mode) {
		return ProxyConfig{}, fmt.Errorf("kube-proxy has no mode %q on Linux%s", c.Mode, topology.Nearest(c.Mode, ProxyModes))
	}
	// replace sets a field, or removes it if the value is nil.
	replace := func(path string, value any, why string) {
		if was, _ := chart.Get(fields, path); was != nil && was != "" && fmt.Sprint(was) != fmt.Sprint(value) {
			c.Replaced = append(c.Replaced, fmt.Sprintf("%s: %v is replaced by %v: %s", path, was, cmp.Or(value, any("nothing")), why))
		}
		if value == nil {
			chart.Remove(fields, path)
			return
		}
		chart.Set(fields, path, value)
	}
	replace("apiVersion", "kubeproxy.config.k8s.io/v1alpha1", "it is the only version")
	fields["kind"] = "KubeProxyConfiguration"
	fields["mode"] = c.Mode
	replace("clientConnection.kubeconfig", "/var/lib/kube-proxy/kubeconfig.conf", "it is kubeadm's")
	replace("clusterCIDR", pods.String(), "it is the range of the lab's pods")
	replace("hostnameOverride", nil, "the nodes are the lab's")
	replace("nodePortAddresses", nil, "the nodes are the lab's")
	replace("metricsBindAddress", metricsAddress, "relapse asks kube-proxy there")
	replace("conntrack.maxPerCore", 0, "the machine's limit is not a node's to set")
	if local, _ := fields["detectLocalMode"].(string); local == "BridgeInterface" || local == "InterfaceNamePrefix" {
		replace("detectLocalMode", "ClusterCIDR", "the lab's pods have other interfaces")
		replace("detectLocal", nil, "the lab's pods have other interfaces")
	}
	out, err := yaml.Marshal(fields)
	c.Text = string(out)
	return c, err
}

// Proxy is kube-proxy at a version, with a configuration of its own, by kubeadm's manifest.
type Proxy struct {
	Version string
	// Image takes the place of the vendor's image, unless it is empty.
	Image  string
	Config ProxyConfig
	// Nodes are the nodes on which it runs.
	Nodes []string
}

// NewProxy is kube-proxy with kubeadm's own configuration, in one of ProxyModes, for pods of a range.
func NewProxy(version, mode string, pods netip.Prefix, nodes ...string) Proxy {
	config, err := NewProxyConfig("", mode, pods)
	if err != nil {
		panic(err) // the caller's mode
	}
	return Proxy{Version: version, Config: config, Nodes: nodes}
}

// ProxyImage is the vendor's name of kube-proxy's image of a version.
func ProxyImage(version string) string { return "registry.k8s.io/kube-proxy:v" + version }

// PatchedNFTImage is ProxyImage with an nft that reads the sets of later versions of nft (images/kube-proxy).
func PatchedNFTImage(version string) string { return "relapse.dev/kube-proxy-nft:v" + version }

// Declare is the action that brings kube-proxy's objects to this version and configuration. It replaces no pod.
func (p Proxy) Declare(ctx context.Context, r *framework.Run) error {
	return apply(ctx, labaccess.Lab(r), changes{
		"ConfigMap": changed(func(m *corev1.ConfigMap) { m.Data["config.conf"] = p.Config.Text }),
		"DaemonSet": changed(func(set *appsv1.DaemonSet) {
			spec := &set.Spec.Template.Spec
			spec.Containers[0].Image = cmp.Or(p.Image, ProxyImage(p.Version))
			spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: p.Nodes}},
				}}},
			}}
			set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		}),
	}, "kube-proxy")
}

// Installed is the action that runs kube-proxy in place of another one, beside these actions, and then waits as
// SyncedEverywhere does. Existing probe pods end. kube-proxy up to 1.35 takes chains of nftables that exist at its
// start for up to date, so they are removed; rules of iptables are replaced as a whole.
func (p Proxy) Installed(bound time.Duration, beside ...framework.Action) framework.Action {
	steps := []framework.Action{workload.StopProbes, labaccess.OnCluster(KubeProxy.Delete), workload.WireNodes}
	switch p.Config.Mode {
	case NFTables:
		steps = slices.Insert(steps, 0, func(context.Context, *framework.Run) error { return host.ProxiesByNFTables() })
		fallthrough
	case IPTables: // mode ipvs is for guests, whose tables cannot be reached
		steps = append(steps, workload.TablesRemoved("kube-proxy", p.Nodes...))
	}
	return framework.InOrder(append(steps, p.Declare, framework.AtOnce(beside...), p.SyncedEverywhere(bound))...)
}

// Rolled is the action that declares kube-proxy and replaces its pods (Roll).
func (p Proxy) Rolled(bound time.Duration) framework.Action {
	return framework.InOrder(p.Declare, labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error {
		return l.EachNode(ctx, p.Nodes, func(ctx context.Context, n *kindlab.Node) error { return p.Roll(ctx, l, n.Name(), bound) })
	}))
}

// Roll replaces the pod of a node by a declared one, and waits until it has written its rules.
func (p Proxy) Roll(ctx context.Context, lab *kindlab.Lab, node string, bound time.Duration) error {
	if err := KubeProxy.Restart(ctx, lab.Clusters[0], []string{node}, bound); err != nil {
		return err
	}
	return p.Synced(ctx, lab, node, bound)
}

// SyncedEverywhere is the action that waits until the pods are ready, and each has written its rules.
func (p Proxy) SyncedEverywhere(bound time.Duration) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, lab *kindlab.Lab) error {
		if err := KubeProxy.Ready(ctx, lab.Clusters[0], p.Nodes, bound); err != nil {
			return err
		}
		return lab.EachNode(ctx, p.Nodes, func(ctx context.Context, n *kindlab.Node) error { return p.Synced(ctx, lab, n.Name(), bound) })
	})
}

const askProxy = `curl -sS -m 5 http://` + metricsAddress + `/proxyMode && echo &&
curl -sS -m 20 http://` + metricsAddress + `/metrics | grep '^` + lastSync + `'`

// lastSync is the time of kube-proxy's last sync, in seconds, and 0 before the first one.
// From 1.33 on it has a label for the IP family (pkg/proxy/metrics).
const lastSync = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"

// Synced waits until kube-proxy of a node runs in its mode and has written its rules. The first sync comes after all
// Services and endpoints were received.
func (p Proxy) Synced(ctx context.Context, lab *kindlab.Lab, node string, bound time.Duration) error {
	return await.Until(ctx, "the first sync of kube-proxy on "+node+" in mode "+p.Config.Mode, 200*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			said, err := lab.Node(node).Exec(ctx, "sh", "-c", askProxy)
			if err != nil {
				return false, "", err
			}
			synced, err := syncedIn(said, p.Config.Mode)
			return synced, strings.TrimSpace(said), err
		})
}

// syncedIn reports whether kube-proxy has synced, by its answers to askProxy. Another mode is an error.
func syncedIn(said, mode string) (bool, error) {
	runs, metrics, _ := strings.Cut(said, "\n")
	if runs != mode {
		return false, fmt.Errorf("kube-proxy runs in mode %q: expected %s", runs, mode)
	}
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(name, `"IPv6"`) {
			continue
		}
		at, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return false, fmt.Errorf("reading the metric %q of kube-proxy: %w", line, err)
		}
		return at > 0, nil
	}
	return false, errors.New("kube-proxy has no metric " + lastSync)
}
