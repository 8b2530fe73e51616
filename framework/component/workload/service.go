package workload

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// LoadBalancer is a Service of that type in front of a probe pod. Its methods are actions.
type LoadBalancer struct {
	Name string
	// Policy is the Service's externalTrafficPolicy.
	Policy  string
	Address netip.Addr
	// Pod is the Name of the probe pod.
	Pod string
	// Via are the nodes that announce the address to the lab's routers.
	Via []string
}

// Endpoint is the probe pod at the Service's address.
func (s LoadBalancer) Endpoint() framework.Endpoint {
	e := framework.PodOn(s.Pod)
	e.Name = "Service " + s.Name
	e.Address = func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(s.Address, wire.DefaultPort) }
	return e
}

// Create creates the Service.
func (s LoadBalancer) Create(ctx context.Context, r *framework.Run) error {
	return Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  loadBalancerIP: %s
  externalTrafficPolicy: %s
  selector: {%s: %s}
  ports: [{name: udp, protocol: UDP, port: %d}]
`, s.Name, s.Address, s.Policy, ProbeLabel, s.Pod, wire.DefaultPort))
}

// Announced waits until the Service has its address, and each router a path to it by each of
// the nodes that announce it.
func (s LoadBalancer) Announced(ctx context.Context, r *framework.Run) error {
	if _, err := BalancerAddress(ctx, labaccess.Cluster(r), s.Name); err != nil {
		return err
	}
	for _, node := range s.Via {
		if err := labaccess.Lab(r).Announced(ctx, node, s.Address); err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes the Service. One that is not there is no error.
func (s LoadBalancer) Remove(ctx context.Context, r *framework.Run) error {
	return RemoveService(ctx, labaccess.Cluster(r), s.Name)
}
