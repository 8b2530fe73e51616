package snapshot

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Node is a Kubernetes Node.
type Node struct {
	Name string `json:"name"`
	// UID distinguishes a node that was removed and added again from one that stayed.
	UID         string         `json:"uid"`
	Created     time.Time      `json:"created"`
	InternalIPs []netip.Addr   `json:"internal_ips"`
	PodCIDRs    []netip.Prefix `json:"pod_cidrs,omitempty"` // spec.podCIDRs
	Ready       bool           `json:"ready"`
	// Unschedulable is set for a cordoned node.
	Unschedulable bool `json:"unschedulable,omitempty"`
	// Excluded is set if the node has the label of nodes that load balancers must not use,
	// node.kubernetes.io/exclude-from-external-load-balancers.
	Excluded bool `json:"excluded_from_load_balancers,omitempty"`
	// Arch is the processor's kind, as in status.nodeInfo: amd64, arm64.
	Arch string `json:"arch,omitempty"`
	// Kubelet is kubelet's version, which names some distributions: v1.33.1, v1.33.1+k3s1.
	Kubelet string `json:"kubelet,omitempty"`
	// Calico is what calico-node says of the node, in its annotations.
	Calico CalicoNode `json:"calico,omitzero"`
	// KubeRouterAddresses are the addresses that kube-router uses for BGP
	// sessions, in the annotation kube-router.io/bgp-local-addresses.
	KubeRouterAddresses []netip.Addr `json:"kube_router_addresses,omitempty"`
}

// CalicoNode is what calico-node writes into its Node's annotations.
type CalicoNode struct {
	// Address is the one that it took for the node, with the length of its
	// subnet: BGP's source and router ID, and every other node's neighbour.
	Address netip.Prefix `json:"address,omitzero"`
	// RouteReflector is the cluster ID of a node that is one: such nodes are in no mesh.
	RouteReflector string `json:"route_reflector,omitempty"`
	// Labels are the labels that Calico has of its node besides Kubernetes' (calicoctl label nodes).
	Labels map[string]string `json:"labels,omitempty"`
}

// Nodes is the source of the Nodes, in order of name.
var Nodes = listSource("Nodes", listedNodes, func(s *Snapshot) *List[Node] { return &s.Nodes }, Node.state)

func (n Node) state(to *statements) {
	ready := "ready"
	if !n.Ready {
		ready = "not ready"
	}
	if n.Unschedulable {
		ready += ", unschedulable"
	}
	if n.Excluded {
		ready += ", excluded from load balancers"
	}
	to.add(API, "Node "+n.Name, n.Name, n.Name, "InternalIP %s, %s", join(n.InternalIPs), ready)
	for _, p := range n.PodCIDRs {
		to.add(API, "Node.spec.podCIDRs", p.String(), n.Name, "%s", n.Name)
	}
	if n.Calico.Address.IsValid() {
		to.add(Agent, "Calico's annotation of "+n.Name, n.Name, "", "%s", n.Calico.Address)
	}
	if len(n.KubeRouterAddresses) > 0 {
		to.add(Agent, "kube-router's annotation of "+n.Name, n.Name, "", "%s", join(n.KubeRouterAddresses))
	}
}

var listedNodes = listing(resource{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"), what: "Nodes", selectable: true},
	nodeOf)

func nodeOf(o *corev1.Node) (n Node, own bool, err error) {
	n = Node{Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.Time, Unschedulable: o.Spec.Unschedulable,
		Arch: same(o.Status.NodeInfo.Architecture), Kubelet: same(o.Status.NodeInfo.KubeletVersion)}
	_, n.Excluded = o.Labels[corev1.LabelNodeExcludeBalancers]
	for _, a := range o.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ip, err := netip.ParseAddr(a.Address)
			if err != nil {
				return n, true, fmt.Errorf("node %q: status.addresses: %w", o.Name, err)
			}
			n.InternalIPs = append(n.InternalIPs, ip)
		}
	}
	if n.PodCIDRs, err = parsePrefixes(o.Spec.PodCIDRs); err != nil {
		return n, true, fmt.Errorf("node %q: spec.podCIDRs: %w", o.Name, err)
	}
	for _, condition := range o.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			n.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	if err := n.readAnnotations(o.Annotations); err != nil {
		return n, true, fmt.Errorf("node %q: annotation %w", o.Name, err)
	}
	return n, true, nil
}

// The annotations (libcalico-go/lib/backend/k8s/resources/node.go of
// projectcalico/calico; network_routes_controller.go of kube-router).
const (
	calicoAddress         = "projectcalico.org/IPv4Address"
	calicoRouteReflector  = "projectcalico.org/RouteReflectorClusterID"
	calicoLabels          = "projectcalico.org/labels"
	kubeRouterLocalSource = "kube-router.io/bgp-local-addresses"
)

func (n *Node) readAnnotations(annotations map[string]string) error {
	n.Calico.RouteReflector = annotations[calicoRouteReflector]
	if text := annotations[calicoAddress]; text != "" {
		p, err := parseRange(text) // Calico, too, takes both forms
		if err != nil {
			return fmt.Errorf("%s: %w", calicoAddress, err)
		}
		n.Calico.Address = p
	}
	if text := annotations[calicoLabels]; text != "" {
		if err := json.Unmarshal([]byte(text), &n.Calico.Labels); err != nil {
			return fmt.Errorf("%s: %w", calicoLabels, err)
		}
	}
	if text := annotations[kubeRouterLocalSource]; text != "" {
		for part := range strings.SplitSeq(text, ",") {
			a, err := netip.ParseAddr(strings.TrimSpace(part))
			if err != nil {
				return fmt.Errorf("%s: %w", kubeRouterLocalSource, err)
			}
			n.KubeRouterAddresses = append(n.KubeRouterAddresses, a)
		}
	}
	return nil
}
