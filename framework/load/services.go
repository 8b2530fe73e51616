package load

//lint:file-ignore SA1019 kube-proxy 1.13 reads v1 Endpoints and nothing else.

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

const (
	namespace = metav1.NamespaceDefault
	// servicePort is the port of Services, and churnPort the port of the churned Services' endpoints.
	servicePort = 80
	churnPort   = 8080
)

var label = map[string]string{"relapse.dev/load": "services"}

// service makes a Service without selector: the load writes its endpoints.
func service(name, clusterIP string, port uint16) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: label},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports:     []corev1.ServicePort{{Port: servicePort, TargetPort: intstr.FromInt32(int32(port))}},
		},
	}
}

// endpointsOf makes the v1 Endpoints of a Service. Kubernetes mirrors them into EndpointSlices.
func endpointsOf(name string, port uint16, addresses ...netip.Addr) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: label}}
	if len(addresses) == 0 {
		return e // an empty subset would be refused
	}
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: int32(port)}}}
	for _, a := range addresses {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: a.String()})
	}
	e.Subsets = []corev1.EndpointSubset{subset}
	return e
}

func nth(p netip.Prefix, n int) netip.Addr {
	bytes := p.Addr().As4()
	bytes[3] = byte(n)
	return netip.AddrFrom4(bytes)
}

func (s Services) heldEndpoints() []netip.Addr {
	var all []netip.Addr
	for i := range s.HeldEndpoints {
		all = append(all, nth(s.HeldRange, i+1))
	}
	return all
}

// Create is the action that creates missing Services, gives the held Service its endpoints, routes the endpoints'
// addresses to the host, and waits until Kubernetes has made EndpointSlices for all.
func (s Services) Create(ctx context.Context, r *framework.Run) error {
	c := labaccess.Cluster(r)
	if err := framework.InOrder(labaccess.StaticAdded(s.HeldRange, s.Host), labaccess.StaticAdded(s.Churn.Range, s.Host))(ctx, r); err != nil {
		return err
	}
	if err := create(ctx, c, service(s.Held, s.HeldVIP.String(), s.Port)); err != nil {
		return err
	}
	if err := s.Restore(ctx, r); err != nil {
		return err
	}
	if err := s.Churn.create(ctx, c); err != nil {
		return err
	}
	return s.mirrored(ctx, c)
}

func create(ctx context.Context, c *kindlab.Cluster, service *corev1.Service) error {
	// Get first: if a Service exists and has a chosen address, Create says that the address is taken, not the name.
	err := c.Kube().Get(ctx, client.ObjectKeyFromObject(service), &corev1.Service{})
	if apierrors.IsNotFound(err) {
		err = c.Kube().Create(ctx, service)
	}
	if err != nil {
		return fmt.Errorf("creating Service %s: %w", service.Name, err)
	}
	return nil
}

// Restore is the action that restores the held Service's endpoints, which the last load removed.
func (s Services) Restore(ctx context.Context, r *framework.Run) error {
	return setEndpoints(ctx, labaccess.Cluster(r), s.Held, s.Port, s.heldEndpoints()...)
}

// mirrored waits until Kubernetes has made EndpointSlices of the Endpoints.
func (s Services) mirrored(ctx context.Context, c *kindlab.Cluster) error {
	return await.Until(ctx, "EndpointSlices of all Services", 200*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			var slices discoveryv1.EndpointSliceList
			if err := c.Kube().List(ctx, &slices, client.InNamespace(namespace)); err != nil {
				return false, "", err
			}
			endpoints := map[string]int{}
			for _, slice := range slices.Items {
				endpoints[slice.Labels[discoveryv1.LabelServiceName]] += len(slice.Endpoints)
			}
			complete := 0
			for i := range s.Churn.Services {
				complete += min(1, endpoints[churnName(i)])
			}
			return endpoints[s.Held] == s.HeldEndpoints && complete == s.Churn.Services,
				fmt.Sprintf("%d endpoints of %s, %d of %d other Services", endpoints[s.Held], s.Held, complete, s.Churn.Services), nil
		})
}

func setEndpoints(ctx context.Context, c *kindlab.Cluster, name string, port uint16, addresses ...netip.Addr) error {
	e := endpointsOf(name, port, addresses...)
	err := c.Kube().Update(ctx, e) // without a version: it replaces any
	if client.IgnoreNotFound(err) == nil && err != nil {
		err = c.Kube().Create(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("writing the Endpoints of %s: %w", name, err)
	}
	return nil
}
