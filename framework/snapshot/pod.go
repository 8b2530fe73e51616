package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is a pod with an address of its own. Pods in the host's network and
// pods that have ended are left out.
type Pod struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Node      string     `json:"node"`
	IP        netip.Addr `json:"ip"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Pods is the source of the pods that have an address of their own, in order
// of namespace and name.
var Pods = clusterList("Pods", (*cluster).pods, func(s *Snapshot) *List[Pod] { return &s.Pods }, nil)

func (p Pod) names(to *Names) {
	to.Pods[p.Name], to.Namespaces[p.Namespace], to.Nodes[p.Node] = true, true, true
}

func (c *cluster) pods(ctx context.Context) ([]Pod, error) {
	l, err := c.core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: notEnded})
	if err != nil {
		return nil, fmt.Errorf("listing Pods: %w", err)
	}
	pods := make([]Pod, 0, len(l.Items))
	for _, o := range l.Items {
		if o.Spec.HostNetwork || o.Status.PodIP == "" {
			continue
		}
		ip, err := netip.ParseAddr(o.Status.PodIP)
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: status.podIP: %w", o.Namespace, o.Name, err)
		}
		for _, other := range o.Status.PodIPs { // routers are asked for their routes of IPv4
			if a, err := netip.ParseAddr(other.IP); err == nil && a.Is4() && !ip.Is4() {
				ip = a
			}
		}
		pods = append(pods, Pod{Namespace: o.Namespace, Name: o.Name, Node: o.Spec.NodeName, IP: ip})
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}
