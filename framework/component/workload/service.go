package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// LoadBalancer is a Service of that type in front of a probe pod. Its methods are actions. On a dual
// lab it has the address of IPv6 that belongs to its Address, too.
type LoadBalancer struct {
	Name string
	// Pod is the Name of the probe pod.
	Pod string
	// Policy is the Service's externalTrafficPolicy; empty: Cluster.
	Policy string
	// Address is the address that it asks for; invalid: any.
	Address netip.Addr
	// Via are the nodes that announce the address to the lab's routers.
	Via []string
	// Labels are the labels by which the address is announced, and Annotation, as "key: value", chooses the address.
	Labels     map[string]string
	Annotation string
	// Class is spec.loadBalancerClass; empty: none.
	Class string
	// OnlyIPv4 is set for a Service of IPv4 alone, on a dual lab as well.
	OnlyIPv4 bool
}

// Endpoint is the probe pod at the Service's address.
func (s LoadBalancer) Endpoint() framework.Endpoint {
	e := framework.PodOn(s.Pod)
	e.Name = "Service " + s.Name
	e.Address = func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(s.Address, wire.DefaultPort) }
	return e
}

func (s LoadBalancer) Create(ctx context.Context, r *framework.Run) error {
	manifest, err := s.manifest(r.Topology)
	if err != nil {
		return err
	}
	return Apply(ctx, labaccess.Cluster(r), manifest)
}

func (s LoadBalancer) manifest(t topology.Topology) (string, error) {
	labels, err := json.Marshal(s.Labels)
	if err != nil {
		return "", err
	}
	more, annotation := "", s.Annotation
	t.Dual = t.Dual && !s.OnlyIPv4
	if t.Dual {
		more = "\n  ipFamilyPolicy: RequireDualStack"
	}
	switch {
	case s.Address.IsValid() && t.Dual: // loadBalancerIP is of one family, and MetalLB takes no annotation beside it
		annotation = fmt.Sprintf("metallb.universe.tf/loadBalancerIPs: %q", t.Addrs(s.Address))
	case s.Address.IsValid():
		more = "\n  loadBalancerIP: " + s.Address.String()
	}
	if s.Class != "" {
		more += "\n  loadBalancerClass: " + s.Class
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, labels: %s, annotations: {%s}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s%s
  selector: {%s: %s}
  ports:
  - {name: tcp, protocol: TCP, port: %d}
  - {name: udp, protocol: UDP, port: %[8]d}
`, s.Name, labels, annotation, cmp.Or(s.Policy, "Cluster"), more, ProbeLabel, s.Pod, wire.DefaultPort), nil
}

// Headless is the action that creates a headless Service of a name in front of the probe pod with a Name.
func Headless(name, pod string) framework.Action {
	return inFront(name, corev1.ClusterIPNone, pod, corev1.ProtocolTCP, wire.DefaultPort)
}

// ClusterIP is the action that creates a Service at an address, or changes it, to select the probe pod with a Name.
func ClusterIP(name string, protocol corev1.Protocol, at netip.AddrPort, pod string) framework.Action {
	return inFront(name, at.Addr().String(), pod, protocol, at.Port())
}

func inFront(name, clusterIP, pod string, protocol corev1.Protocol, port uint16) framework.Action {
	return Applied(fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  clusterIP: %s
  selector: {%s: %s}
  ports: [{name: probe, protocol: %s, port: %d, targetPort: %d}]
`, name, clusterIP, ProbeLabel, pod, protocol, port, wire.DefaultPort))
}

// Announced waits until the Service has its address, each router has a path to it by each of the nodes that announce
// it, and each of these nodes translates it. A packet that comes before its node translates it leaves a flow in
// connection tracking, and the flow is not translated for as long as its packets come.
func (s LoadBalancer) Announced(ctx context.Context, r *framework.Run) error {
	err := s.Routed(ctx, r)
	for _, node := range s.Via {
		for _, f := range r.Topology.Families() {
			if err == nil {
				err = translated(ctx, r, node, f.Addr(s.Address))
			}
		}
	}
	return err
}

// Routed waits until the Service has its address, and each router has a path to it by each of the nodes that announce it.
func (s LoadBalancer) Routed(ctx context.Context, r *framework.Run) error {
	if _, err := s.Given(ctx, r); err != nil {
		return err
	}
	for _, node := range s.Via {
		for _, f := range r.Topology.Families() {
			if err := labaccess.Lab(r).Announced(ctx, node, f.Addr(s.Address)); err != nil {
				return err
			}
		}
	}
	return nil
}

func translated(ctx context.Context, r *framework.Run, node string, address netip.Addr) error {
	save := "iptables-save"
	if address.Is6() {
		save = "ip6tables-save"
	}
	return await.Until(ctx, fmt.Sprintf("kube-proxy of %s to translate %s", node, address), 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			rules, err := labaccess.Lab(r).Node(node).Exec(ctx, save, "--table", "nat")
			return strings.Contains(rules, fmt.Sprintf(" -d %s/%d ", address, address.BitLen())), "no rule has it", err
		})
}

// Remove deletes the Service. One that is not there is no error.
func (s LoadBalancer) Remove(ctx context.Context, r *framework.Run) error {
	return ServiceRemoved(s.Name)(ctx, r)
}

// ServiceRemoved is the action that deletes a Service of the namespace default. One that is not there is no error.
func ServiceRemoved(name string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
		if err := c.Kube().Delete(ctx, service); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Service %s: %w", name, err)
		}
		return nil
	})
}

// addressWithin bounds the wait for a Service's address: a new controller may have to become the leader first.
const addressWithin = 2 * time.Minute

// Given waits until the Service has an address of each of its families, and returns them, IPv4 first.
func (s LoadBalancer) Given(ctx context.Context, r *framework.Run) (addresses []netip.Addr, err error) {
	families := len(r.Topology.Families())
	if s.OnlyIPv4 {
		families = 1
	}
	err = await.Until(ctx, "the Service "+s.Name+" to have an address", 200*time.Millisecond, addressWithin,
		func(ctx context.Context) (bool, string, error) {
			addresses, err = s.Has(ctx, r)
			return len(addresses) == families && addresses[0].Is4(), fmt.Sprintf("its status has %v", addresses), err
		})
	return addresses, err
}

// Has returns the addresses that the Service has now, IPv4 first.
func (s LoadBalancer) Has(ctx context.Context, r *framework.Run) (addresses []netip.Addr, err error) {
	var service corev1.Service
	if err := labaccess.Cluster(r).Client.Resources().Get(ctx, s.Name, metav1.NamespaceDefault, &service); err != nil {
		return nil, err
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(ingress.IP); err == nil {
			addresses = append(addresses, a)
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses, nil
}

// LoadBalancers are Services; each action is for all at once.
type LoadBalancers []LoadBalancer

func (s LoadBalancers) all(do func(LoadBalancer, context.Context, *framework.Run) error) framework.Action {
	return framework.AtOnce(each.Of(s, func(one LoadBalancer) framework.Action {
		return func(ctx context.Context, r *framework.Run) error { return do(one, ctx, r) }
	})...)
}

func (s LoadBalancers) Create(ctx context.Context, r *framework.Run) error {
	return s.all(LoadBalancer.Create)(ctx, r)
}

// Remove deletes the Services. One that is not there is no error.
func (s LoadBalancers) Remove(ctx context.Context, r *framework.Run) error {
	return s.all(LoadBalancer.Remove)(ctx, r)
}

// Announced waits until each is [LoadBalancer.Announced].
func (s LoadBalancers) Announced(ctx context.Context, r *framework.Run) error {
	return s.all(LoadBalancer.Announced)(ctx, r)
}
