package calico

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// State is how Calico uses the nodes' addresses at one moment, as evidence for people.
type State struct {
	// Nodes are the nodes that were asked, in the cluster's order.
	Nodes []string
	// Protocols is what `birdc show protocols` prints on each node, Config the
	// bird.cfg that confd has rendered there.
	Protocols, Config map[string]string
	// Annotations are Calico's annotations on each Node object.
	Annotations map[string]map[string]string
}

// Read reads the state of every node of the lab's cluster.
func Read(ctx context.Context, lab *kindlab.Lab) (State, error) {
	cluster := lab.Clusters[0]
	s := State{
		Nodes: cluster.Nodes(), Protocols: map[string]string{}, Config: map[string]string{},
		Annotations: map[string]map[string]string{},
	}
	var mu sync.Mutex
	err := lab.EachNode(ctx, s.Nodes, func(ctx context.Context, node *kindlab.Node) error {
		protocols, err := inAgent(ctx, node, "birdc", "-s", "/var/run/calico/bird.ctl", "show", "protocols")
		if err != nil {
			return fmt.Errorf("asking BIRD: %w", err)
		}
		config, err := inAgent(ctx, node, "cat", "/etc/calico/confd/config/bird.cfg")
		if err != nil {
			return fmt.Errorf("reading BIRD's configuration: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		s.Protocols[node.Name()], s.Config[node.Name()] = protocols, config
		return nil
	})
	if err != nil {
		return s, err
	}
	var nodes corev1.NodeList
	if err := cluster.Client.Resources().GetControllerRuntimeClient().List(ctx, &nodes); err != nil {
		return s, fmt.Errorf("reading the Nodes' annotations: %w", err)
	}
	for _, n := range nodes.Items {
		s.Annotations[n.Name] = map[string]string{}
		for key, value := range n.Annotations {
			if strings.HasPrefix(key, "projectcalico.org/") {
				s.Annotations[n.Name][key] = value
			}
		}
	}
	return s, nil
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

// BIRD is what birdc prints on all nodes, one after the other.
func (s State) BIRD() string {
	var text strings.Builder
	for _, node := range s.Nodes {
		fmt.Fprintf(&text, "%s: birdc show protocols\n%s\n", node, s.Protocols[node])
	}
	return text.String()
}

// Changes renders, as diff -u does, what differs between the nodes' bird.cfg
// and those of an earlier moment. When names this moment.
func (s State) Changes(before State, when string) (string, error) {
	var text strings.Builder
	for _, node := range s.Nodes {
		err := difflib.WriteUnifiedDiff(&text, difflib.UnifiedDiff{
			A: difflib.SplitLines(before.Config[node]), FromFile: node + "/bird.cfg", FromDate: "before",
			B: difflib.SplitLines(s.Config[node]), ToFile: node + "/bird.cfg", ToDate: when,
			Context: 1,
		})
		if err != nil {
			return "", fmt.Errorf("comparing BIRD's configuration on %s: %w", node, err)
		}
	}
	return text.String(), nil
}

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
