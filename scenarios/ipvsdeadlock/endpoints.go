package ipvsdeadlock

//lint:file-ignore SA1019 kube-proxy 1.13 reads v1 Endpoints and nothing else.

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/await"
)

// endpointsOf makes the v1 Endpoints of a Service, which is what kube-proxy of
// these versions reads. Kubernetes mirrors them into EndpointSlices.
func endpointsOf(name string, addresses ...netip.Addr) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: loadNamespace, Labels: loadLabel}}
	if len(addresses) == 0 {
		return e
	}
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: busyPort}}}
	for _, a := range addresses {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: a.String()})
	}
	e.Subsets = []corev1.EndpointSubset{subset}
	return e
}

// leadsTo waits until Kubernetes says that a Service leads to one address.
func leadsTo(ctx context.Context, r *framework.Run, name string, address netip.Addr) error {
	return await.Until(ctx, fmt.Sprintf("Service %s to lead to %s", name, address), 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var e corev1.Endpoints
			key := client.ObjectKey{Namespace: appNamespace, Name: name}
			if err := r.Cluster.Client.Resources().GetControllerRuntimeClient().Get(ctx, key, &e); err != nil {
				return false, "", err
			}
			var to []string
			for _, subset := range e.Subsets {
				for _, a := range subset.Addresses {
					to = append(to, a.IP)
				}
			}
			return len(to) == 1 && to[0] == address.String(), fmt.Sprintf("it leads to %q", to), nil
		})
}

// setEndpoints says where a Service of the load leads.
func setEndpoints(ctx context.Context, r *framework.Run, name string, addresses ...netip.Addr) error {
	kube := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	e := endpointsOf(name, addresses...)
	err := kube.Update(ctx, e) // without a version: whatever is there
	if client.IgnoreNotFound(err) == nil && err != nil {
		err = kube.Create(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("writing the Endpoints of %s: %w", name, err)
	}
	return nil
}
