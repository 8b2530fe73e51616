package framework

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

// End is a place that probes come from or go to. It is declared once, and the
// engine finds its agent and its address when the lab is up.
type Endpoint struct {
	// Name is the end's name in probes.
	Name string
	// Pod is set where the end is a probe pod.
	Pod *workload.ProbePod
	// Host is the name of a host of the topology, where the end is one.
	Host string
	// Address is set where the end is a server that only answers, and tells
	// where: it is asked each time that probes are started. With Pod, that is the
	// pod which answers there, as behind a Service: its agent says what arrived.
	Address func(*Run) netip.AddrPort
}

// PodEnd is the agent in a probe pod.
func PodEndpoint(p workload.ProbePod) Endpoint { return Endpoint{Name: p.Name, Pod: &p} }

// PodOn is the agent in the probe pod that bears its node's name.
func PodOn(node string) Endpoint { return PodEndpoint(workload.ProbePod{Name: node, Node: node}) }

// PodsOn are the agents of one probe pod on each node.
func PodsOn(nodes ...string) []Endpoint {
	var ends []Endpoint
	for _, node := range nodes {
		ends = append(ends, PodOn(node))
	}
	return ends
}

// HostEnd is the agent on a host outside of the clusters.
func HostEndpoint(h topology.Host) Endpoint { return Endpoint{Name: h.Name, Host: h.Name} }

// Server is an end that has no agent: probes go to it, and none come from it.
func Server(name string, address func(*Run) netip.AddrPort) Endpoint {
	return Endpoint{Name: name, Address: address}
}

// To is the UDP probe from the end to another one.
func (e Endpoint) To(other Endpoint) probe.Probe {
	return probe.Probe{From: e.Name, To: other.Name}.WithDefaults()
}

// Both returns the UDP probes between the end and each of the others, there
// and back.
func (e Endpoint) Both(others ...Endpoint) []probe.Probe {
	var probes []probe.Probe
	for _, other := range others {
		probes = append(probes, e.To(other), other.To(e))
	}
	return probes
}
