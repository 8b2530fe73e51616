package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Service is a Service with a cluster IP. Headless Services and mere names are left out.
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
	// InternalLocal is set if a node gives the packets of its own pods to its own endpoints
	// alone: internalTrafficPolicy Local.
	InternalLocal bool `json:"internal_local,omitempty"`
	// OtherProxy is set if kube-proxy leaves the Service alone, because it has the label
	// service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless.
	OtherProxy bool `json:"other_proxy,omitempty"`
	// Class is spec.loadBalancerClass, and MetalLBPool the pool that MetalLB took its address
	// from, as MetalLB's controller notes it on the Service.
	Class       string `json:"class,omitempty"`
	MetalLBPool string `json:"metallb_pool,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// labelProxyName is LabelServiceProxyName of k8s.io/kubernetes/pkg/proxy/apis.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// metalLBPoolAnnotations are the annotation of MetalLB's controller, from 0.15 on and before.
var metalLBPoolAnnotations = []string{"metallb.io/ip-allocated-from-pool", "metallb.universe.tf/ip-allocated-from-pool"}

func (s Service) String() string { return s.Namespace + "/" + s.Name }

// ServicePort is a port of a Service, or of the endpoints behind it.
type ServicePort struct {
	// Name joins the two. It is empty where there is one port only.
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Port     uint16 `json:"port"`
}

// Services is the source of the Services that have a cluster IP, in order of namespace and name.
//
// It is compared with what kube-proxies have made of it, and no snapshot is
// held up if it takes as long as those.
var Services = listSource("Services", listedServices, func(s *Snapshot) *List[Service] { return &s.Services }, nil).within(proxyTimeout)

var listedServices = listing(resource{
	GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services"), what: "Services", selectable: true,
}, func(o *corev1.Service) (Service, bool, error) {
	s, err := serviceOf(o)
	return s, o.Spec.Type != corev1.ServiceTypeExternalName && o.Spec.ClusterIP != corev1.ClusterIPNone, err
})

func serviceOf(o *corev1.Service) (Service, error) {
	s := Service{Namespace: same(o.Namespace), Name: o.Name, Created: o.CreationTimestamp.Time}
	s.Local = o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	s.LoadBalancerIPs = balancerIPs(o)
	s.InternalLocal = o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	for _, label := range []string{labelProxyName, corev1.IsHeadlessService} {
		if _, has := o.Labels[label]; has {
			s.OtherProxy = true
		}
	}
	if o.Spec.LoadBalancerClass != nil {
		s.Class = same(*o.Spec.LoadBalancerClass)
	}
	for _, annotation := range metalLBPoolAnnotations {
		s.MetalLBPool = cmp.Or(s.MetalLBPool, same(o.Annotations[annotation]))
	}
	for _, p := range o.Spec.Ports {
		s.Ports = append(s.Ports, ServicePort{Name: same(p.Name), Protocol: same(string(p.Protocol)), Port: uint16(p.Port)})
	}
	for _, text := range o.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return s, fmt.Errorf("service %s: spec.clusterIPs: %w", s, err)
		}
		s.ClusterIPs = append(s.ClusterIPs, ip)
	}
	return s, nil
}
