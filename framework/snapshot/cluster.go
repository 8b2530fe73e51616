package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
)

// Cluster reads a Kubernetes API server. Every call is a list, answered from
// the server's own cache of the newest state: no watch, nothing to wait for.
type Cluster struct {
	core      typedcorev1.CoreV1Interface
	apps      typedappsv1.AppsV1Interface
	discovery typeddiscoveryv1.DiscoveryV1Interface
	dynamic   dynamic.Interface
}

// NewCluster makes a Cluster that reads with c's credentials. It needs list on
// nodes, pods and ciliumnodes.cilium.io, for Workloads on daemonsets,
// deployments and statefulsets, and for Services on services and
// endpointslices.
func NewCluster(c *rest.Config) (*Cluster, error) {
	c = rest.CopyConfig(c)
	// A snapshot is three requests, several times a second: client-go's own
	// limit of five a second would be what detection waits for.
	c.QPS = -1
	typed := rest.CopyConfig(c)
	typed.ContentType = runtime.ContentTypeProtobuf
	core, err := typedcorev1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	apps, err := typedappsv1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	discovery, err := typeddiscoveryv1.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	dyn, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", c.Host, err)
	}
	return &Cluster{core: core, apps: apps, discovery: discovery, dynamic: dyn}, nil
}

// Nodes lists the Nodes in order of name.
func (c *Cluster) Nodes(ctx context.Context) ([]Node, error) {
	l, err := c.core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	nodes := make([]Node, 0, len(l.Items))
	for _, o := range l.Items {
		n := Node{Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.Time}
		for _, a := range o.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				ip, err := netip.ParseAddr(a.Address)
				if err != nil {
					return nil, fmt.Errorf("node %q: status.addresses: %w", o.Name, err)
				}
				n.InternalIPs = append(n.InternalIPs, ip)
			}
		}
		if n.PodCIDRs, err = parsePrefixes(o.Spec.PodCIDRs); err != nil {
			return nil, fmt.Errorf("node %q: spec.podCIDRs: %w", o.Name, err)
		}
		for _, condition := range o.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				n.Ready = condition.Status == corev1.ConditionTrue
			}
		}
		if err := n.readAnnotations(o.Annotations); err != nil {
			return nil, fmt.Errorf("node %q: annotation %w", o.Name, err)
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

var ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

// ciliumNode is what is read of Cilium's type of that name
// (github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2, 1.8 to 1.20).
type ciliumNode struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Addresses []struct {
			Type string `json:"type"`
			IP   string `json:"ip"`
		} `json:"addresses"`
		IPAM struct {
			PodCIDRs []string `json:"podCIDRs"`
		} `json:"ipam"`
	} `json:"spec"`
}

// CiliumNodes lists the CiliumNodes in order of name. A cluster that does not
// know the resource has none.
func (c *Cluster) CiliumNodes(ctx context.Context) ([]CiliumNode, error) {
	l, err := c.dynamic.Resource(ciliumNodes).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing CiliumNodes: %w", err)
	}
	nodes := make([]CiliumNode, 0, len(l.Items))
	for _, item := range l.Items {
		var o ciliumNode
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &o); err != nil {
			return nil, fmt.Errorf("CiliumNode %q: %w", item.GetName(), err)
		}
		n := CiliumNode{Name: o.Metadata.Name}
		if n.PodCIDRs, err = parsePrefixes(o.Spec.IPAM.PodCIDRs); err != nil {
			return nil, fmt.Errorf("CiliumNode %q: spec.ipam.podCIDRs: %w", n.Name, err)
		}
		for _, a := range o.Spec.Addresses {
			if a.Type == string(corev1.NodeInternalIP) {
				ip, err := netip.ParseAddr(a.IP)
				if err != nil {
					return nil, fmt.Errorf("CiliumNode %q: spec.addresses: %w", n.Name, err)
				}
				n.InternalIPs = append(n.InternalIPs, ip)
			}
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b CiliumNode) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// notEnded selects pods that have not ended. An ended pod keeps its address
// and images in its status, and no longer has them.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

// Pods lists the pods that have an address of their own, in order of
// namespace and name.
func (c *Cluster) Pods(ctx context.Context) ([]Pod, error) {
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
		pods = append(pods, Pod{Namespace: o.Namespace, Name: o.Name, Node: o.Spec.NodeName, IP: ip})
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, p.Masked())
	}
	return prefixes, nil
}
