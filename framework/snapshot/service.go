package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service is a Service with a cluster IP. Headless Services and mere names
// are left out.
type Service struct {
	Namespace  string        `json:"namespace"`
	Name       string        `json:"name"`
	ClusterIPs []netip.Addr  `json:"cluster_ips"`
	Ports      []ServicePort `json:"ports,omitempty"`
	// LoadBalancerIPs are those in the status of a Service of type LoadBalancer.
	LoadBalancerIPs []netip.Addr `json:"load_balancer_ips,omitempty"`
	// Local is set if a node that gets packets from outside gives them to its own endpoints
	// alone: externalTrafficPolicy Local.
	Local bool `json:"local,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// ServicePort is a port of a Service, or of the endpoints behind it.
type ServicePort struct {
	// Name joins the two. It is empty where there is one port only.
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Port     uint16 `json:"port"`
}

// Services is the source of the Services that have a cluster IP, in order of
// namespace and name.
//
// It is compared with what kube-proxies have made of it, and no snapshot is
// held up if it takes as long as those.
var Services = clusterList("Services", (*cluster).services, func(s *Snapshot) *List[Service] { return &s.Services }, nil).within(proxyTimeout)

func (s Service) names(to *Names) { to.Namespaces[s.Namespace] = true }

func (c *cluster) services(ctx context.Context) ([]Service, error) {
	l, err := c.core.Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var services []Service
	for _, o := range l.Items {
		if o.Spec.Type == corev1.ServiceTypeExternalName || o.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		s := Service{Namespace: o.Namespace, Name: o.Name, Created: o.CreationTimestamp.Time}
		for _, text := range o.Spec.ClusterIPs {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("service %s: spec.clusterIPs: %w", s, err)
			}
			s.ClusterIPs = append(s.ClusterIPs, ip)
		}
		s.Local = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		s.LoadBalancerIPs = balancerIPs(o)
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
