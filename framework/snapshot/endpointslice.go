package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/relapse-dev/relapse/topology/each"
)

// EndpointSlice is an EndpointSlice of a Service.
type EndpointSlice struct {
	Namespace string        `json:"namespace"`
	Service   string        `json:"service"`
	Ports     []ServicePort `json:"ports,omitempty"`
	// Ready are the addresses that get new connections.
	Ready []netip.Addr `json:"ready,omitempty"`
	// ReadyOn are their nodes, one for each, empty where it is not known.
	ReadyOn []string `json:"ready_on,omitempty"`
	// Unnamed counts those without a hostname, where the Service is headless.
	Unnamed int `json:"unnamed,omitempty"`
	// Hinted is set if endpoints name the zones or the nodes that are to use them: the others
	// may go without.
	Hinted bool `json:"hinted,omitempty"`
	// ReadyNodes are the nodes that have them, each once, in order, as far as they are known.
	ReadyNodes []string `json:"ready_nodes,omitempty"`
	// Draining are the addresses that are not ready and still serve, because their pods
	// are terminating: they keep the connections that they have.
	Draining []netip.Addr `json:"draining,omitempty"`
	// DrainingNodes are their nodes, as far as they are known.
	DrainingNodes []string `json:"draining_nodes,omitempty"`
	// Changed is when somebody has written the object last, to the second; zero if that is not known.
	Changed time.Time `json:"changed,omitzero"`
}

// EndpointSlices is the source of the EndpointSlices of IP addresses that
// belong to a Service, in order of namespace, Service and name.
var EndpointSlices = listSource("EndpointSlices", listedEndpointSlices,
	func(s *Snapshot) *List[EndpointSlice] { return &s.EndpointSlices }, EndpointSlice.state).within(proxyTimeout)

func (e EndpointSlice) state(to *statements) {
	if to.bulk {
		to.add(API, "EndpointSlice", e.Namespace+"/"+e.Service, "", "%s", cmp.Or(join(e.Ready), "no ready endpoint"))
	}
}

var listedEndpointSlices = listed[EndpointSlice]{listing(resource{
	GroupVersionResource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), what: "EndpointSlices",
	labels: discoveryv1.LabelServiceName,
}, func(o *discoveryv1.EndpointSlice) (s EndpointSlice, own bool, err error) {
	if o.AddressType == discoveryv1.AddressTypeFQDN {
		return s, false, nil
	}
	s, err = endpointSliceOf(o)
	return s, true, err
}).resource, func(a, b EndpointSlice) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service))
}}

func endpointSliceOf(o *discoveryv1.EndpointSlice) (EndpointSlice, error) {
	s := EndpointSlice{Namespace: same(o.Namespace), Service: same(o.Labels[discoveryv1.LabelServiceName])}
	for _, by := range o.ManagedFields {
		if by.Time != nil && by.Time.After(s.Changed) {
			s.Changed = by.Time.Time
		}
	}
	for _, p := range o.Ports {
		if p.Port == nil { // every port: no proxy can make anything of it
			continue
		}
		port := ServicePort{Protocol: string(corev1.ProtocolTCP), Port: uint16(*p.Port)}
		if p.Name != nil {
			port.Name = same(*p.Name)
		}
		if p.Protocol != nil {
			port.Protocol = same(string(*p.Protocol))
		}
		s.Ports = append(s.Ports, port)
	}
	for _, e := range o.Endpoints {
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready // unknown counts as ready
		serving := e.Conditions.Serving != nil && *e.Conditions.Serving
		if !ready && !serving {
			continue
		}
		// All addresses of one endpoint are the same one: the first is taken.
		if len(e.Addresses) == 0 {
			continue
		}
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			return s, fmt.Errorf("EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
		}
		if !ready {
			s.Draining = append(s.Draining, ip)
			if e.NodeName != nil {
				s.DrainingNodes = append(s.DrainingNodes, same(*e.NodeName))
			}
			continue
		}
		node := ""
		if e.NodeName != nil {
			node = same(*e.NodeName)
			s.ReadyNodes = append(s.ReadyNodes, node)
		}
		if _, headless := o.Labels[corev1.IsHeadlessService]; headless && (e.Hostname == nil || *e.Hostname == "") {
			s.Unnamed++
		}
		s.Ready, s.ReadyOn = append(s.Ready, ip), append(s.ReadyOn, node)
		s.Hinted = s.Hinted || e.Hints != nil && len(e.Hints.ForZones)+len(e.Hints.ForNodes) > 0
	}
	s.ReadyNodes = each.Once(s.ReadyNodes)
	return s, nil
}
