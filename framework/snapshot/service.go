package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	// LoadBalancer is set for a Service of that type. Wants are the addresses that it asks for, and WantsPool
	// is the pool of MetalLB; without either it takes any.
	LoadBalancer bool         `json:"load_balancer,omitempty"`
	Wants        []netip.Addr `json:"wants,omitempty"`
	WantsPool    string       `json:"wants_pool,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// labelProxyName is LabelServiceProxyName of k8s.io/kubernetes/pkg/proxy/apis.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// metalLBAnnotation is the value of an annotation of MetalLB, by its name of 0.14.9 and later, or of before.
func metalLBAnnotation(o *corev1.Service, name string) string {
	return same(cmp.Or(o.Annotations["metallb.io/"+name], o.Annotations["metallb.universe.tf/"+name]))
}

// Stands reports whether another reading is of the same Service, with the same requests to who gives it addresses.
func (s Service) Stands(o Service) bool {
	return s.String() == o.String() && s.Created.Equal(o.Created) && s.LoadBalancer == o.LoadBalancer && s.Class == o.Class &&
		s.WantsPool == o.WantsPool && slices.Equal(s.Wants, o.Wants) && slices.Equal(s.Ports, o.Ports)
}

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
	s.MetalLBPool = metalLBAnnotation(o, "ip-allocated-from-pool")
	if s.LoadBalancer = o.Spec.Type == corev1.ServiceTypeLoadBalancer; s.LoadBalancer {
		s.WantsPool = metalLBAnnotation(o, "address-pool")
		for text := range strings.SplitSeq(cmp.Or(o.Spec.LoadBalancerIP, metalLBAnnotation(o, "loadBalancerIPs")), ",") {
			if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil { // a controller says itself that another text is wrong
				s.Wants = append(s.Wants, a)
			}
		}
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
