package snapshot

import (
	"context"
	"fmt"
	"net/netip"
	"unique"

	corev1 "k8s.io/api/core/v1"
)

// Pod is a pod with an address of its own. Pods in the host's network and
// pods that have ended are left out.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// IP is the address of IPv4 of a pod that has both, and IPv6 its other one.
	IP   netip.Addr `json:"ip"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Pods is the source of the pods that have an address of their own, in order of namespace and name.
var Pods = clusterList("Pods", []*resource{listedPods.resource}, (*cluster).pods, func(s *Snapshot) *List[Pod] { return &s.Pods }, nil)

// keptPod is what sources read of a pod that has not ended.
type keptPod struct {
	images PodImages
	// ip is not valid if the pod has no address of its own, or err says why it cannot be read. ipv6 is the second
	// address of a pod with both families.
	ip, ipv6 netip.Addr
	err      error
	calico   []CalicoAgent
}

var listedPods = listing(resource{
	GroupVersionResource: corev1.SchemeGroupVersion.WithResource("pods"), what: "Pods", fields: notEnded,
}, func(o *corev1.Pod) (keptPod, bool, error) {
	p := keptPod{images: podImagesOf(o), calico: calicoAgentsOf(o)}
	p.ip, p.ipv6, p.err = podIPs(o)
	return p, true, nil
})

// same is a text that many objects have, such as an image: it is kept once.
func same(text string) string { return unique.Make(text).Value() }

func (c *cluster) pods(ctx context.Context) ([]Pod, error) {
	all, err := listedPods.items(ctx, c)
	if err != nil {
		return nil, err
	}
	pods := make([]Pod, 0, len(all))
	for _, p := range all {
		if p.err != nil {
			return nil, p.err
		}
		if p.ip.IsValid() {
			pods = append(pods, Pod{Namespace: p.images.Namespace, Name: p.images.Name, Node: p.images.Node, IP: p.ip, IPv6: p.ipv6})
		}
	}
	return pods, nil
}

// podIPs are a pod's own addresses: the one of IPv4 first, and the one of IPv6 if it has both.
func podIPs(o *corev1.Pod) (ip, ipv6 netip.Addr, err error) {
	if o.Spec.HostNetwork || o.Status.PodIP == "" {
		return ip, ipv6, nil
	}
	if ip, err = netip.ParseAddr(o.Status.PodIP); err != nil {
		return ip, ipv6, fmt.Errorf("pod %s/%s: status.podIP: %w", o.Namespace, o.Name, err)
	}
	for _, other := range o.Status.PodIPs {
		if a, err := netip.ParseAddr(other.IP); err == nil && a.Is4() != ip.Is4() {
			ipv6 = a
		}
	}
	if ipv6.Is4() {
		ip, ipv6 = ipv6, ip
	}
	return ip, ipv6, nil
}
