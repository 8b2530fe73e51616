package snapshot

import (
	"net/http"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
)

func newService(name string, spec corev1.ServiceSpec) corev1.Service {
	spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}
	return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
}

func noted(s corev1.Service, label, labelled, annotation, says string) corev1.Service {
	s.Labels, s.Annotations = map[string]string{label: labelled}, map[string]string{annotation: says}
	return s
}

func newSlice(name, service string, kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: kind, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}, {Name: new("any")}},
	}
}

func TestClusterServices(t *testing.T) {
	ready := func(address string, isReady *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: isReady}}
	}
	c := clusterOf(t, map[string]http.HandlerFunc{
		servicesPath: protobuf(t, &corev1.ServiceList{Items: []corev1.Service{
			newService("web", corev1.ServiceSpec{ClusterIP: "10.96.0.101", ClusterIPs: []string{"10.96.0.101", "fd00::101"}}),
			newService("headless", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}}),
			newService("elsewhere", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}),
			newService("api", corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}}),
			noted(newService("dns", corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.10"}, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal)}),
				"service.kubernetes.io/service-proxy-name", "node-local-dns", "metallb.universe.tf/ip-allocated-from-pool", "users"),
			noted(newService("vip", corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.11"}, LoadBalancerClass: new("kube-vip.io/kube-vip-class")}),
				corev1.IsHeadlessService, "", "metallb.io/ip-allocated-from-pool", "other"),
		}}),
		slicesPath: protobufOf(t, discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{
			newSlice("web-2", "web", discoveryv1.AddressTypeIPv4, ready("10.30.64.5", nil), discoveryv1.Endpoint{
				Addresses: []string{"10.30.64.7"}, NodeName: new("node1"), Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
			}),
			newSlice("web-1", "web", discoveryv1.AddressTypeIPv4, ready("10.30.64.3", new(true)), ready("10.30.64.4", new(false)),
				discoveryv1.Endpoint{Addresses: []string{"10.30.64.6"}, NodeName: new("node1"), Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}}),
			newSlice("names", "web", discoveryv1.AddressTypeFQDN, ready("pod.example.com", nil)),
		}}),
	})
	at := netip.MustParseAddr
	ports := []ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}
	must.Equal(t, "", []Service{
		{Namespace: "shop", Name: "api", ClusterIPs: []netip.Addr{at("10.96.0.1")}, Ports: ports},
		{Namespace: "shop", Name: "dns", ClusterIPs: []netip.Addr{at("10.96.0.10")}, Ports: ports, InternalLocal: true, OtherProxy: true, MetalLBPool: "users"},
		{Namespace: "shop", Name: "vip", ClusterIPs: []netip.Addr{at("10.96.0.11")}, Ports: ports, OtherProxy: true, Class: "kube-vip.io/kube-vip-class", MetalLBPool: "other"},
		{Namespace: "shop", Name: "web", ClusterIPs: []netip.Addr{at("10.96.0.101"), at("fd00::101")}, Ports: ports},
	}, must.Get(listedServices.items(t.Context(), c))(t), byValue)
	targets := []ServicePort{{Name: "http", Protocol: "TCP", Port: 8080}}
	must.Equal(t, "", []EndpointSlice{
		{Namespace: "shop", Service: "web", Ports: targets, Ready: []netip.Addr{at("10.30.64.3")}, ReadyOn: []string{""}, Draining: []netip.Addr{at("10.30.64.6")}, DrainingNodes: []string{"node1"}},
		{Namespace: "shop", Service: "web", Ports: targets, Ready: []netip.Addr{at("10.30.64.5"), at("10.30.64.7")}, ReadyOn: []string{"", "node1"}, Hinted: true, ReadyNodes: []string{"node1"}},
	}, must.Get(listedEndpointSlices.items(t.Context(), c))(t), byValue)
}

func TestClusterServiceErrors(t *testing.T) {
	c := clusterOf(t, map[string]http.HandlerFunc{
		servicesPath: protobuf(t, &corev1.ServiceList{Items: []corev1.Service{
			newService("web", corev1.ServiceSpec{ClusterIP: "x", ClusterIPs: []string{"x"}}),
		}}),
		slicesPath: answer(http.StatusForbidden, forbidden),
	})
	must.Fail(t, must.Err(listedServices.items(t.Context(), c)), "shop/web: spec.clusterIPs")
	must.Fail(t, must.Err(listedEndpointSlices.items(t.Context(), c)), "listing EndpointSlices")
}

// A Service waits for any address, or asks for one in a way that MetalLB or Cilium knows.
func TestRequests(t *testing.T) {
	balancer := func(change func(*corev1.Service)) Service {
		s := newService("web", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}})
		change(&s)
		return must.Get(serviceOf(&s))(t)
	}
	noted := func(key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{key: value} }
	}
	plain := balancer(func(*corev1.Service) {})
	for name, c := range map[string]struct {
		change       func(*corev1.Service)
		waits, other bool
	}{
		"as it is":       {func(*corev1.Service) {}, true, false},
		"MetalLB's note": {noted("metallb.io/ip-allocated-from-pool", "a"), true, false},
		"a name of a load balancer": {func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "a.example"}}
		}, false, false},
		"it is being deleted":     {func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{} }, false, false},
		"both families":           {func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"} }, false, true},
		"spec.loadBalancerIP":     {func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" }, false, true},
		"an address that is none": {noted("metallb.universe.tf/loadBalancerIPs", "none"), false, true},
		"a pool":                  {noted("metallb.io/address-pool", "a"), false, true},
		"an address of Cilium's":  {noted("lbipam.cilium.io/ips", "192.0.2.2"), false, true},
		"a key for sharing":       {noted("metallb.io/allow-shared-ip", "a"), true, true},
		"a label":                 {func(s *corev1.Service) { s.Labels = map[string]string{"rack": "a"} }, true, true},
		"another program's note":  {noted("example.com/a", "b"), true, false},
		"another type":            {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, false, true},
	} {
		s := balancer(c.change)
		must.Equal(t, name, [2]bool{c.waits, !c.other}, [2]bool{s.Unserved && s.TakesAny, s.Stands(plain)})
	}
}
