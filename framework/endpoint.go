package framework

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Endpoint is where probes start or end. The engine finds its agent and its address when
// the lab is up.
type Endpoint struct {
	// Name is its name in probes.
	Name string
	// Pod is set for a probe pod.
	Pod *ProbePod
	// Host is the name of a host of the topology.
	Host string
	// Address is set for a server that only answers. It is called each time that probes
	// start. With Pod, that pod answers at the address, such as behind a Service, and its
	// agent reports what arrived.
	Address func(*Run) netip.AddrPort
	// V6 is the IPv6 address. Nil: the counterpart of Address (topology.Family).
	V6 func(*Run) netip.AddrPort
}

// ProbePod is a pod that runs a probe agent. Package workload creates it.
type ProbePod struct {
	// Name is the endpoint's name in probes. Services select the pod by it, as the value
	// of the label workload.ProbeLabel.
	Name string
	Node string
	// HostNetwork puts the agent into the node's own network.
	HostNetwork bool
	// Hostname is the pod's hostname behind the headless Service Subdomain; both may be empty.
	Hostname, Subdomain string
}

// PodEndpoint is the agent in a probe pod.
func PodEndpoint(p ProbePod) Endpoint { return Endpoint{Name: p.Name, Pod: &p} }

// PodOn is the agent in the probe pod that has its node's name.
func PodOn(node string) Endpoint { return PodEndpoint(ProbePod{Name: node, Node: node}) }

// PodsOn are the agents of one probe pod on each node.
func PodsOn(nodes ...string) []Endpoint { return each.Of(nodes, PodOn) }

// HostEndpoint is the agent on a host outside of the clusters.
func HostEndpoint(h topology.Host) Endpoint { return Endpoint{Name: h.Name, Host: h.Name} }

// Server is an endpoint without an agent: probes go to it, and none start from it.
func Server(name string, address func(*Run) netip.AddrPort) Endpoint {
	return Endpoint{Name: name, Address: address}
}

// ServerAt is a Server at a fixed address.
func ServerAt(name string, address netip.AddrPort) Endpoint {
	return Server(name, func(*Run) netip.AddrPort { return address })
}

// To is the UDP probe from the endpoint to another one.
func (e Endpoint) To(other Endpoint) probe.Probe { return e.Over(probe.UDP, other) }

// Over is the probe from the endpoint to another one over a protocol.
func (e Endpoint) Over(protocol probe.Protocol, other Endpoint) probe.Probe {
	return probe.Probe{From: e.Name, To: other.Name, Protocol: protocol}.WithDefaults()
}

// Both returns the UDP probes between the endpoint and each of the others, in both directions.
func (e Endpoint) Both(others ...Endpoint) []probe.Probe {
	var probes []probe.Probe
	for _, other := range others {
		probes = append(probes, e.To(other), other.To(e))
	}
	return probes
}
