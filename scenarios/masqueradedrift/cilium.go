package masqueradedrift

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
)

//go:embed agent.yaml
var agentYAML string

var agentManifest = template.Must(template.New("agent").Parse(agentYAML))

// config is Cilium's ConfigMap, by key.
type config map[string]string

// common are the keys that all variants have: they are read by every version
// here, and none of them changes its meaning. Without kube-proxy replacement
// iptables masquerade.
var common = config{
	"ipam":                     "kubernetes",
	"enable-ipv4":              "true",
	"enable-ipv6":              "false",
	"tunnel":                   "disabled",
	"kube-proxy-replacement":   "disabled",
	"identity-allocation-mode": "crd",
	"cluster-name":             "default",
}

// byBPF are the keys that let BPF programs do what iptables do otherwise: BPF
// NodePort in plain DSR mode, and with it BPF masquerading. Pods are not wired
// by Cilium's own plugin, so their packets must pass the node's stack
// (enable-host-legacy-routing): 1.8 does not know another way. For the check of
// Services' source ranges later versions want CAP_SYS_RESOURCE, which not every
// machine grants; there are no Services here.
var byBPF = config{
	"kube-proxy-replacement":        "partial",
	"enable-node-port":              "true",
	"node-port-mode":                "dsr",
	"enable-bpf-masquerade":         "true",
	"enable-remote-node-identity":   "true",
	"enable-host-legacy-routing":    "true",
	"enable-svc-source-range-check": "false",
	"devices":                       outsideDevice,
	"direct-routing-device":         outsideDevice,
}

// outsideDevice is the nodes' network card.
const outsideDevice = "eth0"

// with returns the common keys and more.
func (c config) with(more config) config {
	all := maps.Clone(c)
	maps.Copy(all, more)
	return all
}

// cilium is Cilium at a version, with a configuration.
type cilium struct {
	Version string
	Config  config
	// Restart is any text; when it changes, the agents are restarted.
	Restart string
}

// Image is the agent slice's: of the one that attaches BPF programs only where
// they are asked for, as it brings compilers with it.
func (c cilium) Image() string {
	if c.Config.bpf() {
		return "relapse.dev/cilium-bpf:v" + c.Version
	}
	return "relapse.dev/cilium-rules:v" + c.Version
}

// bpf tells whether BPF programs are to be attached.
func (c config) bpf() bool { return c["kube-proxy-replacement"] == byBPF["kube-proxy-replacement"] }

func (c cilium) manifest() (string, error) {
	var text strings.Builder
	err := agentManifest.Execute(&text, struct {
		cilium
		Image     string
		APIServer netip.AddrPort
	}{c, c.Image(), netip.AddrPortFrom(addressOf(all[0]), 6443)})
	if err != nil {
		return "", fmt.Errorf("rendering Cilium's manifests: %w", err)
	}
	return text.String(), nil
}

// apply brings ConfigMap and agents to this state.
func (c cilium) apply(ctx context.Context, r *framework.Run) error {
	text, err := c.manifest()
	if err != nil {
		return err
	}
	return workload.Apply(ctx, r.Cluster, text)
}

// run applies and waits until every node's agent has written its rules.
func (c cilium) run(ctx context.Context, r *framework.Run) error {
	if err := c.apply(ctx, r); err != nil {
		return err
	}
	return await.Until(ctx, "the agents of Cilium "+c.Version+" to write their rules", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			agents, err := c.agents(ctx, r)
			if err != nil {
				return false, "", err
			}
			for _, n := range all {
				if a, ok := agents[n]; !ok || !a.wrote() {
					return false, fmt.Sprintf("%s: %s", n, a), nil
				}
			}
			return true, "", nil
		})
}

// agent is what the newest agent of a node has come to.
type agent struct {
	pod corev1.Pod
	// log is that of the running container, or of the one that ended last.
	log string
}

// wrote tells whether the rules are the agent's: the slice says so when the
// vendor's code has returned.
func (a agent) wrote() bool { return strings.Contains(a.log, "The iptables rules are installed") }

// fatal is why the agent does not start, as the vendor's code says it.
func (a agent) fatal() string {
	for line := range strings.Lines(a.log) {
		if strings.Contains(line, "level=fatal") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func (a agent) String() string {
	lines := strings.Split(strings.TrimSpace(a.log), "\n")
	return fmt.Sprintf("its pod is %q, and its log ends with %q", a.pod.Status.Phase, lines[len(lines)-1])
}

// agents are those of this version and restart, by node. A node whose agent is
// still of another is missing.
func (c cilium) agents(ctx context.Context, r *framework.Run) (map[string]agent, error) {
	var pods corev1.PodList
	err := r.Cluster.Client.Resources(metav1.NamespaceSystem).List(ctx, &pods, resources.WithLabelSelector("k8s-app=cilium"))
	if err != nil {
		return nil, fmt.Errorf("listing the agents: %w", err)
	}
	client, err := kubernetes.NewForConfig(r.Cluster.Client.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client for the agents' logs: %w", err)
	}
	found := map[string]agent{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Spec.Containers[0].Image != c.Image() ||
			pod.Annotations["relapse.dev/restarted"] != c.Restart || len(pod.Status.ContainerStatuses) == 0 {
			continue
		}
		state := pod.Status.ContainerStatuses[0]
		if state.State.Waiting != nil && state.RestartCount == 0 && state.LastTerminationState.Terminated == nil {
			continue // it has not begun
		}
		log, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Previous: state.State.Waiting != nil,
		}).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the log of %s: %w", pod.Name, err)
		}
		found[pod.Spec.NodeName] = agent{pod, string(log)}
	}
	return found, nil
}

// refused waits until every node's agent has ended with an error, and returns
// what they say: each different one once.
func (c cilium) refused(ctx context.Context, r *framework.Run) ([]string, error) {
	var said []string
	err := await.Until(ctx, "the agents of Cilium "+c.Version+" to refuse to start", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			agents, err := c.agents(ctx, r)
			if err != nil {
				return false, "", err
			}
			said = nil
			for _, n := range all {
				why := agents[n].fatal()
				if agents[n].wrote() || why == "" {
					return false, fmt.Sprintf("%s: %s", n, agents[n]), nil
				}
				// The time is each agent's own.
				if _, text, ok := strings.Cut(why, "msg="); ok {
					why = text
				}
				if !slices.Contains(said, why) {
					said = append(said, why)
				}
			}
			return true, "", nil
		})
	return said, err
}

// route gives the ToR the way to each node's pods.
func route(ctx context.Context, r *framework.Run) error {
	tor, err := r.Lab.Router("tor")
	if err != nil {
		return err
	}
	for _, n := range all {
		err = errors.Join(err, tor.AddStatic(ctx, rangeOf(n), addressOf(n)))
	}
	return errors.Join(err, tor.Close())
}

// clean does what a reboot would do to what agents of any version have left on
// the nodes: their rules, the BPF programs and maps, the connections, and the
// configuration of CNI and of the programs. It leaves a BPF file system, as
// systemd does on a machine.
func clean(ctx context.Context, r *framework.Run) error {
	const script = `
iptables-save | grep -v CILIUM_ | iptables-restore
tc qdisc delete dev ` + outsideDevice + ` clsact 2>/dev/null || true
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
rm -rf /sys/fs/bpf/tc
conntrack -F 2>/dev/null
rm -rf /etc/cni/net.d/05-cilium.conflist /var/lib/cni/networks /var/run/cilium`
	for _, n := range all {
		if _, err := r.Lab.Node(n).Exec(ctx, "sh", "-ec", script); err != nil {
			return fmt.Errorf("cleaning %s: %w", n, err)
		}
	}
	return nil
}
