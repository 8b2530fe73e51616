package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// loadBalancer is the endpoint at the address of the Service of type LoadBalancer.
const loadBalancer = "LoadBalancer address"

// balancedEnd is that endpoint, with the address that the Service got.
func balancedEnd(address *netip.Addr) framework.Endpoint {
	e := framework.PodEndpoint(beside)
	e.Name, e.Address = loadBalancer, func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(*address, wire.DefaultPort) }
	return e
}

// announces asks the BGP speaker of a node for what it has not done yet: the address of a new
// Service is announced by it to each router, and withdrawn when the Service is gone. The next
// new Service gets the same address.
func announces(ctx context.Context, r *framework.Run, node string, labels map[string]string) error {
	var announced netip.Addr
	err := withFresh(ctx, r, freshlyBalanced(labels), func(address netip.Addr) error {
		announced = address
		return labaccess.Lab(r).Announced(ctx, node, address)
	})
	if err != nil {
		return err
	}
	return labaccess.Lab(r).Withdrawn(ctx, node, announced)
}

// announcesAnew waits for new sessions with a node, and then asks its speaker as announces does.
func announcesAnew(labels map[string]string) askAgent {
	return func(ctx context.Context, r *framework.Run, node, version string, began time.Time) error {
		if err := sessionsSince(ctx, r, node, version, began); err != nil {
			return err
		}
		return announces(ctx, r, node, labels)
	}
}

// balanced is the Service of type LoadBalancer in front of the pod beside: no other probe from
// outside goes to that pod. Cilium's connection tracking has the translation of a flow for some
// time after it. Its tuple has the client and the pod, so the replies to a new flow from
// the same port to the pod itself would come from the Service's address.
var balanced = balancer{name: "balanced", pod: beside.Name}

func freshlyBalanced(labels map[string]string) balancer {
	return balancer{name: "fresh", pod: beside.Name, labels: labels}
}

// balancer is a Service of type LoadBalancer in front of a probe pod.
type balancer struct {
	name, pod string
	// labels are those by which its address is announced.
	labels map[string]string
	// annotation chooses its address, as "key: value"; empty: any.
	annotation string
	// class is spec.loadBalancerClass; empty: none.
	class string
	// local is set for externalTrafficPolicy Local.
	local bool
}

func (b balancer) with(labels map[string]string) balancer {
	b.labels = labels
	return b
}

// withFresh does something while there is a new Service that has an address.
func withFresh(ctx context.Context, r *framework.Run, fresh balancer, do func(netip.Addr) error) error {
	if err := applyLoadBalancer(ctx, r, fresh); err != nil {
		return err
	}
	address, err := workload.BalancerAddress(ctx, labaccess.Cluster(r), fresh.name)
	if err == nil {
		err = do(address)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fresh.name}}
	return errors.Join(err, labaccess.Cluster(r).Client.Resources().Delete(context.WithoutCancel(ctx), service))
}

func applyLoadBalancer(ctx context.Context, r *framework.Run, b balancer) error {
	labels, err := json.Marshal(b.labels)
	if err != nil {
		return err
	}
	policy := "Cluster"
	if b.local {
		policy = "Local"
	}
	if b.class != "" {
		policy += "\n  loadBalancerClass: " + b.class
	}
	return workload.Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, labels: %s, annotations: {%s}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s
  selector: {%s: %s}
  ports:
  - {name: tcp, protocol: TCP, port: %d}
  - {name: udp, protocol: UDP, port: %[7]d}
`, b.name, labels, b.annotation, policy, workload.ProbeLabel, b.pod, wire.DefaultPort))
}

// balance is the action that creates the Service balanced, and addressed the one that notes its
// address.
func balance(labels map[string]string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		return applyLoadBalancer(ctx, r, balanced.with(labels))
	}
}

func addressed(address *netip.Addr) framework.Action {
	return func(ctx context.Context, r *framework.Run) (err error) {
		*address, err = workload.BalancerAddress(ctx, labaccess.Cluster(r), balanced.name)
		return err
	}
}
