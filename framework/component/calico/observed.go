package calico

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

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
