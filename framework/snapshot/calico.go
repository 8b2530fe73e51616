package snapshot

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/each"
)

// CalicoAgent is one calico-node, as its pod is configured: how it chooses the address of its node.
type CalicoAgent struct {
	Node string `json:"node"`
	Pod  string `json:"pod"` // namespace/name
	// IP and Method are IP and IP_AUTODETECTION_METHOD of its environment.
	IP     string `json:"ip,omitempty"`
	Method string `json:"method,omitempty"`
	// Poll is how often it autodetects again: AUTODETECT_POLL_INTERVAL.
	Poll time.Duration `json:"poll_ns"`
	// Unknown are those of these variables whose values are not in the pod
	// but, say, in a ConfigMap.
	Unknown []string `json:"unknown,omitempty"`
}

// CalicoAgents is the source of the calico-nodes, in order of node and name. A
// cluster without Calico has none.
var CalicoAgents = clusterList("calico-node's settings", []*resource{listedPods.resource}, (*cluster).calicoAgents,
	func(s *Snapshot) *List[CalicoAgent] { return &s.CalicoAgents }, nil)

const (
	// calicoNode is the label k8s-app of calico-node's pods, and the name of
	// their main container, in Calico's manifests as in its operator's.
	calicoNode = "calico-node"
	// defaultPoll is DEFAULT_MONITOR_IP_POLL_INTERVAL of Calico's startup.go.
	defaultPoll = 60 * time.Second
)

func (c *cluster) calicoAgents(ctx context.Context) ([]CalicoAgent, error) {
	pods, err := listedPods.items(ctx, c)
	if err != nil {
		return nil, err
	}
	agents := slices.Concat(each.Of(pods, func(p keptPod) []CalicoAgent { return p.calico })...)
	slices.SortFunc(agents, func(a, b CalicoAgent) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod)) })
	return agents, nil
}

func calicoAgentsOf(o *corev1.Pod) []CalicoAgent {
	if o.Labels["k8s-app"] != calicoNode || o.Spec.NodeName == "" || o.DeletionTimestamp != nil {
		return nil
	}
	var agents []CalicoAgent
	for _, container := range o.Spec.Containers {
		if container.Name == calicoNode {
			agents = append(agents, calicoAgent(o, container))
		}
	}
	return agents
}

func calicoAgent(pod *corev1.Pod, container corev1.Container) CalicoAgent {
	a := CalicoAgent{Node: pod.Spec.NodeName, Pod: pod.Namespace + "/" + pod.Name, Poll: defaultPoll}
	for _, e := range container.Env {
		poll := ""
		to := map[string]*string{"IP": &a.IP, "IP_AUTODETECTION_METHOD": &a.Method, "AUTODETECT_POLL_INTERVAL": &poll}[e.Name]
		switch {
		case to == nil:
		case e.ValueFrom != nil:
			a.Unknown = append(a.Unknown, e.Name)
		default:
			*to = e.Value
		}
		// Calico falls back to the default in the same way.
		if d, err := time.ParseDuration(poll); err == nil {
			a.Poll = d
		}
	}
	return a
}
