package calico

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Address is Calico's address of a node; invalid if it has none.
func Address(s snapshot.Snapshot, node string) netip.Addr {
	n, _ := each.First(s.Nodes.Items, func(n snapshot.Node) bool { return n.Name == node })
	return n.Calico.Address.Addr()
}

// Sessions are the BGP sessions of a node's BIRD, up or not.
func Sessions(n snapshot.NodeNetwork) []snapshot.BIRDProtocol {
	return slices.DeleteFunc(slices.Clone(n.BIRD.Items), func(p snapshot.BIRDProtocol) bool { return !p.Neighbor.IsValid() })
}

// HidesPods reports whether felix has written the rule of natOutgoing on a node.
func HidesPods(n snapshot.NodeNAT) bool {
	return slices.ContainsFunc(n.Rules.Items, func(r snapshot.Rule) bool {
		return r.Chain == "cali-nat-outgoing" && r.Target == "MASQUERADE"
	})
}

// Restarts are calico-node's pods by node, each with the number of its restarts.
func Restarts(ctx context.Context, c *kindlab.Cluster) (map[string]string, error) {
	pods, err := Agent.Pods.List(ctx, c)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			all[p.Spec.NodeName] = fmt.Sprintf("%s with %d restarts", p.Name, s.RestartCount)
		}
	}
	return all, nil
}

// IsReady reports whether calico-node's pod on a node is ready, by kubelet's status.
func IsReady(ctx context.Context, c *kindlab.Cluster, node string) (bool, error) {
	pods, err := Agent.Pods.List(ctx, c)
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && workload.Ready(p) }), err
}

func inAgent(ctx context.Context, node *kindlab.Node, command ...string) (string, error) {
	const script = `id=$(crictl ps --quiet --state running --name "^` + agent + `$")
exec crictl exec --sync "$id" "$@"`
	return node.Exec(ctx, append([]string{"sh", "-ec", script, "sh"}, command...)...)
}

// NotReady is why calico-node on a node says that it is not ready, in its own words;
// empty if it says that it is.
func NotReady(ctx context.Context, node *kindlab.Node) (string, error) {
	said, err := inAgent(ctx, node, "sh", "-c", "calico-node -felix-ready -bird-ready 2>&1 && echo ready || true")
	if line := notReady.FindString(said); line != "" || strings.HasSuffix(strings.TrimSpace(said), "ready") {
		return line, nil
	}
	return "", fmt.Errorf("asking calico-node on %s whether it is ready: %q: %w", node.Name(), said, err)
}

// notReady is how it begins the line that says why (node/pkg/health).
var notReady = regexp.MustCompile(`calico/node is not ready: .*`)

// LastLook is when calico-node -monitor-addresses has last autodetected a node's
// address and found the Node's InternalIP on an interface; zero for never.
func LastLook(ctx context.Context, node *kindlab.Node) (time.Time, error) {
	log, err := node.Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_"+agent+"-*/"+agent+"/*.log")
	if err != nil {
		return time.Time{}, err
	}
	return lastLook(log)
}

// lastLook reads calico-node's log as the kubelet keeps it.
func lastLook(log string) (time.Time, error) {
	var last time.Time
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(line, " ")
		if !strings.Contains(text, "monitor-addresses/") || !strings.Contains(text, "Including CIDR information from host interface") {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return last, fmt.Errorf("reading %s's log: %w", agent, err)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}
