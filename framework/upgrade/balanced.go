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
	"github.com/relapse-dev/relapse/framework/probe"
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
	err := withFresh(ctx, r, labels, func(address netip.Addr) error {
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
const balanced = "balanced"

// withFresh does something while there is a new Service of type LoadBalancer that has an address.
func withFresh(ctx context.Context, r *framework.Run, labels map[string]string, do func(netip.Addr) error) error {
	const fresh = "fresh"
	if err := applyLoadBalancer(ctx, r, fresh, labels); err != nil {
		return err
	}
	address, err := workload.BalancerAddress(ctx, labaccess.Cluster(r), fresh)
	if err == nil {
		err = do(address)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fresh}}
	return errors.Join(err, labaccess.Cluster(r).Client.Resources().Delete(context.WithoutCancel(ctx), service))
}

// applyLoadBalancer declares a Service, with the labels by which its address is announced.
func applyLoadBalancer(ctx context.Context, r *framework.Run, name string, labels map[string]string) error {
	text, err := json.Marshal(labels)
	if err != nil {
		return err
	}
	return workload.Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, labels: %s}
spec:
  type: LoadBalancer
  selector: {%s: %s}
  ports:
  - {name: tcp, protocol: TCP, port: %d}
  - {name: udp, protocol: UDP, port: %[5]d}
`, name, text, workload.ProbeLabel, beside.Name, wire.DefaultPort))
}

// balance is the action that creates the Service balanced, and addressed the one that notes its
// address.
func balance(labels map[string]string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error { return applyLoadBalancer(ctx, r, balanced, labels) }
}

func addressed(address *netip.Addr) framework.Action {
	return func(ctx context.Context, r *framework.Run) (err error) {
		*address, err = workload.BalancerAddress(ctx, labaccess.Cluster(r), balanced)
		return err
	}
}

func loadBalancerPaths() []PathKind {
	to := func(protocols ...probe.Protocol) []probe.Probe {
		var all []probe.Probe
		for _, p := range protocols {
			all = append(all, probe.Probe{From: outside, To: loadBalancer, Protocol: p}.WithDefaults())
		}
		return all
	}
	return []PathKind{
		{Name: loadBalancer + ", outside, UDP", Probes: to(probe.UDP)},
		{Name: loadBalancer + ", outside, new connections", Probes: to(probe.TCP, probe.UDPFlow)},
		{Name: loadBalancer + ", outside, long-lived TCP", Probes: to(probe.Stream)},
	}
}
