package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service is a Service with a cluster IP. Headless Services and mere names
// are left out.
type Service struct {
	Namespace  string        `json:"namespace"`
	Name       string        `json:"name"`
	ClusterIPs []netip.Addr  `json:"cluster_ips"`
	Ports      []ServicePort `json:"ports,omitempty"`
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// ServicePort is a port of a Service, or of the endpoints behind it.
type ServicePort struct {
	// Name joins the two. It is empty where there is one port only.
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Port     uint16 `json:"port"`
}

// EndpointSlice is an EndpointSlice of a Service.
type EndpointSlice struct {
	Namespace string        `json:"namespace"`
	Service   string        `json:"service"`
	Ports     []ServicePort `json:"ports,omitempty"`
	// Ready are the addresses that new connections are to go to.
	Ready []netip.Addr `json:"ready,omitempty"`
}

// ServiceReader tells which Services there are and what is behind them. A
// *Cluster is one.
type ServiceReader interface {
	Services(context.Context) ([]Service, error)
	EndpointSlices(context.Context) ([]EndpointSlice, error)
}

// Services lists the Services that have a cluster IP, in order of namespace
// and name.
func (c *Cluster) Services(ctx context.Context) ([]Service, error) {
	l, err := c.core.Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var services []Service
	for _, o := range l.Items {
		if o.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		s := Service{Namespace: o.Namespace, Name: o.Name}
		for _, text := range o.Spec.ClusterIPs {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("service %s: spec.clusterIPs: %w", s, err)
			}
			s.ClusterIPs = append(s.ClusterIPs, ip)
		}
		for _, p := range o.Spec.Ports {
			s.Ports = append(s.Ports, ServicePort{Name: p.Name, Protocol: string(p.Protocol), Port: uint16(p.Port)})
		}
		services = append(services, s)
	}
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return services, nil
}

// EndpointSlices lists the EndpointSlices of IP addresses that belong to a
// Service, in order of namespace, Service and name.
func (c *Cluster) EndpointSlices(ctx context.Context) ([]EndpointSlice, error) {
	l, err := c.discovery.EndpointSlices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName})
	if err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	slices.SortFunc(l.Items, func(a, b discoveryv1.EndpointSlice) int {
		service := discoveryv1.LabelServiceName
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Labels[service], b.Labels[service]), cmp.Compare(a.Name, b.Name))
	})
	var all []EndpointSlice
	for _, o := range l.Items {
		if o.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		s := EndpointSlice{Namespace: o.Namespace, Service: o.Labels[discoveryv1.LabelServiceName]}
		for _, p := range o.Ports {
			if p.Port == nil { // every port: no proxy can make anything of it
				continue
			}
			port := ServicePort{Protocol: string(corev1.ProtocolTCP), Port: uint16(*p.Port)}
			if p.Name != nil {
				port.Name = *p.Name
			}
			if p.Protocol != nil {
				port.Protocol = string(*p.Protocol)
			}
			s.Ports = append(s.Ports, port)
		}
		for _, e := range o.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready { // unknown counts as ready
				continue
			}
			// All addresses of one endpoint are the same one: the first is taken.
			if len(e.Addresses) == 0 {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				return nil, fmt.Errorf("EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
			}
			s.Ready = append(s.Ready, ip)
		}
		all = append(all, s)
	}
	return all, nil
}
