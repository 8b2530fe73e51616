package workload

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// addressWithin bounds the wait for the address of a Service. A controller that was started a
// moment ago may have to become the leader first.
const addressWithin = 2 * time.Minute

// BalancerAddress waits until a Service of type LoadBalancer in the namespace default has an
// address, and returns it.
func BalancerAddress(ctx context.Context, c *kindlab.Cluster, service string) (netip.Addr, error) {
	var address netip.Addr
	err := await.Until(ctx, "the Service "+service+" to have an address", 200*time.Millisecond, addressWithin,
		func(ctx context.Context) (bool, string, error) {
			var s corev1.Service
			if err := c.Client.Resources().Get(ctx, service, metav1.NamespaceDefault, &s); err != nil {
				return false, "", err
			}
			for _, ingress := range s.Status.LoadBalancer.Ingress {
				var err error
				if address, err = netip.ParseAddr(ingress.IP); err == nil && address.Is4() {
					return true, "", nil
				}
			}
			return false, fmt.Sprintf("its status has %v", s.Status.LoadBalancer.Ingress), nil
		})
	return address, err
}
