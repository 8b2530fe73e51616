package snapshot

import (
	"cmp"
	"crypto/sha256"
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
	// Unserved is set for a Service of type LoadBalancer that has neither an address nor a name of a load balancer, and is
	// not being deleted. Wants are the addresses that it asks for. TakesAny is set if it asks for none and for no pool, and
	// is of IPv4 alone.
	Unserved bool         `json:"unserved,omitempty"`
	Wants    []netip.Addr `json:"wants,omitempty"`
	TakesAny bool         `json:"takes_any,omitempty"`
	// Requests are equal if all is that decides which addresses the Service gets: class, labels, cluster IPs, and
	// what it asks of MetalLB and Cilium. It is a digest, and empty for other types than LoadBalancer.
	Requests string `json:"requests,omitempty"`
	// Created is when the object was created, to the second.
	Created time.Time `json:"created,omitzero"`
}

// labelProxyName is LabelServiceProxyName of k8s.io/kubernetes/pkg/proxy/apis.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// metalLBAnnotation is the value of an annotation of MetalLB, by its name of 0.14.9 and later, or of before.
func metalLBAnnotation(o *corev1.Service, name string) string {
	return same(cmp.Or(o.Annotations["metallb.io/"+name], o.Annotations["metallb.universe.tf/"+name]))
}

// Stands reports whether another reading is of the same Service, and whether its requests for addresses are the same.
func (s Service) Stands(o Service) bool {
	return s.String() == o.String() && s.Created.Equal(o.Created) && s.Requests == o.Requests && slices.Equal(s.Ports, o.Ports)
}

func (s *Service) requests(o *corev1.Service) {
	asked := map[string]string{"": o.Spec.LoadBalancerIP}
	vendors := []string{"metallb.io", "metallb.universe.tf", "lbipam.cilium.io", "io.cilium"}
	for key, value := range o.Annotations {
		prefix, name, _ := strings.Cut(key, "/")
		if name != "ip-allocated-from-pool" && slices.Contains(vendors, prefix) {
			asked[key] = value
		}
	}
	s.Unserved = len(o.Status.LoadBalancer.Ingress) == 0 && o.DeletionTimestamp == nil
	s.TakesAny = len(s.ClusterIPs) == 1 && s.ClusterIPs[0].Is4() && metalLBAnnotation(o, "address-pool") == ""
	for _, name := range []string{"", "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs",
		"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"} {
		s.TakesAny = s.TakesAny && asked[name] == ""
		for text := range strings.SplitSeq(asked[name], ",") {
			if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil { // a controller says itself that another text is wrong
				s.Wants = append(s.Wants, a)
			}
		}
	}
	// Maps are printed in order of their keys.
	s.Requests = fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, o.Spec.Type, s.Class, s.ClusterIPs, o.Labels, asked)))[:12]
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
// It may take as long as Proxies: detectors compare the two, so no snapshot has to wait for it alone.
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
	for _, ingress := range o.Status.LoadBalancer.Ingress { // some load balancers have a name in place of an address
		if ip, err := netip.ParseAddr(ingress.IP); err == nil && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, ip)
		}
	}
	s.InternalLocal = o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	_, other := o.Labels[labelProxyName]
	_, headless := o.Labels[corev1.IsHeadlessService]
	s.OtherProxy = other || headless
	if o.Spec.LoadBalancerClass != nil {
		s.Class = same(*o.Spec.LoadBalancerClass)
	}
	s.MetalLBPool = metalLBAnnotation(o, "ip-allocated-from-pool")
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
	if o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.requests(o)
	}
	return s, nil
}
