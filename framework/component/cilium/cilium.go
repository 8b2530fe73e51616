// Package cilium puts Cilium on a lab's cluster and takes it away again: the agents, cilium-operator, the ConfigMap
// that both read, and CiliumNodes. It knows how Cilium is deployed; scenarios know which versions and keys make an
// incident.
//
// The agents are slices, up to 1.12: parts of the vendor's agent, built as it publishes them (images/cilium/agent,
// images/cilium/rules). cilium-operator runs whole. From 1.15 on package release installs all of Cilium.
package cilium

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"text/template"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Agent is the image of the agent under the vendor's name: the slice with watchers, node routes and BGP speaker, and
// from 1.15 on the whole agent.
func Agent(version string) string { return "quay.io/cilium/cilium:v" + version }

// Operator is the image of cilium-operator, under the vendor's name.
func Operator(version string) string { return "quay.io/cilium/operator-generic:v" + version }

// Rules is the image of the agent slice that writes the vendor's iptables rules.
func Rules(version string) string { return "relapse.dev/cilium-rules:v" + version }

// BPF is Rules with the vendor's BPF programs, and with the compilers by which it makes them.
func BPF(version string) string { return "relapse.dev/cilium-bpf:v" + version }

// Modes of allocating pods' addresses: values of the key ipam.
const (
	ClusterPool = "cluster-pool" // cilium-operator allocates, in CiliumNode
	Kubernetes  = "kubernetes"   // kube-controller-manager allocates, in Node.spec
)

// ConfigMap is the configuration of agents and operator, as namespace/name. Agents read it only when they start.
const ConfigMap = metav1.NamespaceSystem + "/cilium-config"

// device is the nodes' network card, by the name that it has in every lab.
const device = "eth0"

// Config is Cilium's ConfigMap, by key.
type Config map[string]string

// With returns a copy that has the keys of more as well.
func (c Config) With(more Config) Config {
	all := maps.Clone(c)
	maps.Copy(all, more)
	return all
}

// Native is the configuration that all labs have in common: native routing, nothing in place of kube-proxy, pods'
// addresses from kube-controller-manager, iptables masquerade. Every version reads these keys, with the same meaning.
var Native = Config{
	"ipam":                     Kubernetes,
	"enable-ipv4":              "true",
	"enable-ipv6":              "false",
	"tunnel":                   "disabled",
	"kube-proxy-replacement":   "disabled",
	"identity-allocation-mode": "crd",
	"cluster-name":             "default",
}

// DSR is Native with BPF NodePort in plain DSR mode, and with it BPF masquerading. Pods are not wired by Cilium's own
// plugin, so their packets must pass the node's stack (enable-host-legacy-routing): 1.8 does not know another way. The
// check of source ranges is off: later versions need CAP_SYS_RESOURCE, not granted everywhere; no DSR lab has Services.
var DSR = Native.With(Config{
	"kube-proxy-replacement":        "partial",
	"enable-node-port":              "true",
	"node-port-mode":                "dsr",
	"enable-bpf-masquerade":         "true",
	"enable-remote-node-identity":   "true",
	"enable-host-legacy-routing":    "true",
	"enable-svc-source-range-check": "false",
	"devices":                       device,
	"direct-routing-device":         device,
})

// Cilium is a state that a cluster can be brought to.
type Cilium struct {
	// Agent is the image of the agents: Agent, Rules or BPF of a version.
	Agent string
	// Operator is the image of cilium-operator. Empty: none runs.
	Operator string
	Config   Config
	// Speaker is set for the image Agent, whose BGP speaker has the lab's routers for peers. The other slices have no
	// speaker, and keep their state on the node.
	Speaker bool
	// Restart is any text; when it changes, the agents are restarted.
	Restart string
}

// Announcing is Cilium at a version whose agents announce pods' ranges to the routers of a cluster's lab: native
// routing, no masquerade, the MetalLB speaker. with adds keys, or changes their values.
func Announcing(version string, cluster topology.Cluster, with Config) Cilium {
	return Cilium{
		Agent: Agent(version), Operator: Operator(version), Speaker: true,
		Config: Native.With(Config{
			"cluster-pool-ipv4-cidr":      cluster.PodCIDR.String(),
			"cluster-pool-ipv4-mask-size": strconv.Itoa(cluster.NodeMask),
			"enable-ipv4-masquerade":      "false",
			"ipv4-native-routing-cidr":    cluster.PodCIDR.String(),
			"auto-direct-node-routes":     "true",
			"bgp-announce-pod-cidr":       "true",
			"bgp-config-path":             "/var/lib/cilium/bgp/config.yaml",
		}).With(with),
	}
}

var (
	agents   = workload.SystemDaemonSet("cilium")
	operator = workload.Deployment{Name: "cilium-operator", Pods: workload.Pods{
		Namespace: metav1.NamespaceSystem, Labels: map[string]string{"name": "cilium-operator"},
	}}
)

var (
	//go:embed config.yaml
	configYAML string
	//go:embed operator.yaml
	operatorYAML string
	//go:embed agents.yaml
	agentsYAML string

	configManifest   = template.Must(template.New("config").Parse(configYAML))
	operatorManifest = template.Must(template.New("operator").Parse(operatorYAML))
	agentsManifest   = template.Must(template.New("agents").Parse(agentsYAML))
)

// place is what the manifests need to know of the cluster.
type place struct {
	// APIServer replaces the kubernetes Service, for which a lab has no proxy.
	APIServer netip.AddrPort
	// ControlPlane is the node on which the operator runs.
	ControlPlane string
	// Peers are the peers of the speakers; none: there are no speakers.
	Peers []topology.BGPPeer
}

func (s Cilium) manifest(t *template.Template, p place) (string, error) {
	return workload.Render(t, struct {
		Cilium
		place
	}{s, p})
}

func (s Cilium) apply(ctx context.Context, r *framework.Run, t *template.Template) error {
	c := labaccess.Cluster(r)
	at := place{APIServer: c.APIServer(), ControlPlane: c.Nodes()[0]}
	if s.Speaker {
		at.Peers = r.Topology.BGPPeers()
	}
	text, err := s.manifest(t, at)
	if err != nil {
		return err
	}
	return workload.Apply(ctx, c, text)
}

// Restarted is the state after a restart of all agents for a reason; agents that were restarted for it before stay.
func (s Cilium) Restarted(why string) Cilium {
	s.Restart = why
	return s
}

// Configure is the action that brings the ConfigMaps to this state, and the operator, if there is one. Running agents
// do not read them again until RunAgents or Restarted restarts them.
func (s Cilium) Configure(ctx context.Context, r *framework.Run) error {
	if err := s.apply(ctx, r, configManifest); err != nil || s.Operator == "" {
		return err
	}
	return s.apply(ctx, r, operatorManifest)
}

// agentsWithin bounds the start of agents: seconds, unless all nodes pull an image with compilers at once.
const agentsWithin = time.Minute

// RunAgents is the action that brings configured agents to this state, and waits until each of these nodes runs one.
func (s Cilium) RunAgents(nodes ...string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		if err := s.apply(ctx, r, agentsManifest); err != nil {
			return err
		}
		return agents.Ready(ctx, labaccess.Cluster(r), nodes, agentsWithin)
	}
}

// Announced is the action that does Configure and RunAgents, and waits until each of the lab's routers has heard from
// each node's agent. It waits in vain for agents that were not replaced: they have nothing new to say.
func (s Cilium) Announced(nodes ...string) framework.Action {
	return framework.InOrder(s.Configure, labaccess.SessionsUp(nodes, s.RunAgents(nodes...)))
}

// StopOperator is the action that deletes cilium-operator and waits until it has ended. Configure starts it again.
func StopOperator(ctx context.Context, r *framework.Run) error {
	c := labaccess.Cluster(r)
	if err := operator.Delete(ctx, c); err != nil {
		return err
	}
	// One that is killed before it has given its lease back keeps the next one waiting for 15 s.
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cilium-operator-resource-lock"}}
	if err := c.Kube().Delete(ctx, lease); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking the lease back from cilium-operator: %w", err)
	}
	return nil
}

// OperatorUp is the action that waits until the operator has listed the CiliumNodes, and gives ranges to new ones.
func OperatorUp(ctx context.Context, r *framework.Run) error {
	c := labaccess.Cluster(r)
	const last = "Initialization complete" // operator/main.go, 1.11 and 1.12
	return await.Until(ctx, "cilium-operator to say: "+last, 100*time.Millisecond, operatorWithin,
		func(ctx context.Context) (bool, string, error) {
			pods, err := operator.Pods.List(ctx, c)
			if err != nil || len(pods) != 1 || !workload.Started(pods[0]) {
				return false, fmt.Sprintf("%d pods, or one that has not started", len(pods)), err
			}
			log, err := workload.Log(ctx, c, pods[0])
			return strings.Contains(log, last), workload.DescribePod(pods[0]), err
		})
}

// Uninstalled is the action that removes Cilium, and what its agents have left behind on these nodes. The probe pods go
// with it, because they were wired by its CNI plugin. pods is the cluster's pod range. What is not there is no error.
func Uninstalled(nodes []string, pods netip.Prefix) framework.Action {
	return framework.InOrder(
		framework.AtOnce(labaccess.OnCluster(agents.Delete), StopOperator, workload.StopProbes),
		func(ctx context.Context, r *framework.Run) error {
			return errors.Join(deleteNodes(ctx, labaccess.Cluster(r)), clean(ctx, labaccess.Lab(r), nodes, pods))
		})
}

// clean removes what a reboot would of agents of any version: rules, BPF programs and maps, connections, routes to
// other nodes' pods, mounts below /run/cilium (the node's cgroups), and the programs' configuration. It leaves a BPF
// file system, as systemd does, and the CNI configuration: without it kubelet starts no pod for up to 5 s.
func clean(ctx context.Context, l *kindlab.Lab, nodes []string, pods netip.Prefix) error {
	v6 := ""
	if l.Topology.Dual {
		v6 = `
ip6tables-save | grep -v CILIUM_ | ip6tables-restore -w
conntrack -F -f ipv6 2>/dev/null
ip -6 route flush root ` + topology.IPv6.Prefix(pods).String()
	}
	script := `
iptables-save | grep -v CILIUM_ | iptables-restore -w
tc qdisc delete dev ` + device + ` clsact 2>/dev/null || true
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
rm -rf /sys/fs/bpf/tc
conntrack -F 2>/dev/null
ip -4 route flush root ` + pods.String() + v6 + `
mounts=$(sed -En 's|^[^ ]+ (/run/cilium/[^ ]+) .*|\1|p' /proc/mounts | sort -r)
for mount in $mounts; do umount $mount; done
rm -rf --one-file-system /var/lib/cni/networks /run/cilium`
	return l.EachNode(ctx, nodes, func(ctx context.Context, node *kindlab.Node) error {
		if _, err := node.Exec(ctx, "sh", "-ec", script); err != nil {
			return fmt.Errorf("cleaning up after Cilium: %w", err)
		}
		return nil
	})
}

// Masquerade finds, among a node's NAT rules, the one of Cilium's that hides the node's pods from all but the native
// CIDR (pkg/datapath/iptables/iptables.go, installMasqueradeRules).
func Masquerade(rules []snapshot.Rule, pods, native netip.Prefix) (rule snapshot.Rule, there bool) {
	return each.First(rules, func(r snapshot.Rule) bool {
		return r.Chain == "CILIUM_POST_nat" && r.Comment == "cilium masquerade non-cluster" && r.Target == "MASQUERADE" &&
			r.Source == (snapshot.Match{Range: pods}) && r.Destination == (snapshot.Match{Range: native, Not: true})
	})
}

// NodeHeader is the path on a node of the header that configures the BPF programs which the agent compiles.
const NodeHeader = "/var/run/cilium/state/globals/node_config.h"
