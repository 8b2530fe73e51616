// Package snapshot collects what every layer of a cluster's network says at
// one moment: Kubernetes, Cilium, the BGP routers, the kernels' routing tables
// and, where it is asked for, the nodes' interfaces, Calico and its BIRD, the
// images that run and those that a pull would bring, or Services, kube-proxies
// and the kernels' IPVS tables. It only reads, and it judges nothing: package
// detect does.
package snapshot

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/topology/lab/router"
)

// What the routers say is in the words of package router.
type (
	// Path is one path of a router's RIB.
	Path = router.Path
	// Route is one route of a kernel's main table.
	Route = router.Route
	// NextHop is where a route leads.
	NextHop = router.NextHop
	// Neighbor is a BGP session, as the router sees it.
	Neighbor = router.Neighbor
)

// Snapshot is what all layers said at one moment. It is plain data.
type Snapshot struct {
	// Time is when the collection began, Took how long it lasted: everything
	// in the snapshot was read in between.
	Time time.Time     `json:"time"`
	Took time.Duration `json:"took_ns"`

	Nodes       List[Node]       `json:"nodes"`
	CiliumNodes List[CiliumNode] `json:"cilium_nodes"`
	Pods        List[Pod]        `json:"pods"`
	// Workloads, PodImages and Tags are not read unless the collector is told
	// to. Tags are in order of image.
	Workloads List[Workload]  `json:"workloads"`
	PodImages List[PodImages] `json:"pod_images"`
	Tags      List[Tag]       `json:"tags"`
	// ConfigMaps are those that the collector was told of.
	ConfigMaps List[ConfigMap] `json:"config_maps"`
	// Routers and NodeTables are in order of name, one for each that the
	// collector was told of, whether it could be read or not.
	Routers    []Router    `json:"routers"`
	NodeTables []NodeTable `json:"node_tables"`
	// NodeNetworks, in order of node, and CalicoAgents are not read unless the
	// collector is told to.
	NodeNetworks []NodeNetwork     `json:"node_networks,omitempty"`
	CalicoAgents List[CalicoAgent] `json:"calico_agents"`
	// Services, EndpointSlices and Proxies are not read unless the collector
	// is told to. Proxies are in order of node.
	Services       List[Service]       `json:"services"`
	EndpointSlices List[EndpointSlice] `json:"endpoint_slices"`
	Proxies        []Proxy             `json:"proxies,omitempty"`
	// Firewalls, in order of node, are not read unless the collector is told
	// to.
	Firewalls []Firewall `json:"firewalls,omitempty"`
	// NAT and Outside are in order of name, one for each node and host that
	// the collector was told to ask.
	NAT     []NodeNAT     `json:"nat,omitempty"`
	Outside []HostSockets `json:"outside,omitempty"`
}

// List is what one source said. A source that could not be read is not the
// same as one that lists nothing: whoever looks at Items asks for Read first.
// One that was not asked for is not read, and has no Error.
type List[T any] struct {
	Read bool `json:"read"`
	// Error says why the source was not read.
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took_ns"`
	Items []T           `json:"items,omitempty"`
}

// Node is a Kubernetes Node.
type Node struct {
	Name string `json:"name"`
	// UID tells a node that was removed and came back from one that stayed.
	UID         string         `json:"uid"`
	Created     time.Time      `json:"created"`
	InternalIPs []netip.Addr   `json:"internal_ips"`
	PodCIDRs    []netip.Prefix `json:"pod_cidrs,omitempty"` // spec.podCIDRs
	Ready       bool           `json:"ready"`
	// Calico is what calico-node says of the node, in its annotations.
	Calico CalicoNode `json:"calico,omitzero"`
	// KubeRouterAddresses are those that kube-router is told to speak BGP
	// from, in the annotation kube-router.io/bgp-local-addresses.
	KubeRouterAddresses []netip.Addr `json:"kube_router_addresses,omitempty"`
}

// CiliumNode is a CiliumNode (cilium.io/v2).
type CiliumNode struct {
	Name string `json:"name"`
	// PodCIDRs are spec.ipam.podCIDRs: where the node's pods get their
	// addresses from.
	PodCIDRs []netip.Prefix `json:"pod_cidrs,omitempty"`
	// InternalIPs are the addresses of type InternalIP in spec.addresses.
	InternalIPs []netip.Addr `json:"internal_ips,omitempty"`
}

// Pod is a pod with an address of its own. Pods in the host's network and
// pods that have ended are left out.
type Pod struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Node      string     `json:"node"`
	IP        netip.Addr `json:"ip"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Router is what one BGP router says. Paths are read before Neighbors: a
// session that is up in Neighbors was up when its paths were read, or came up
// since.
type Router struct {
	Name      string         `json:"name"`
	Paths     List[Path]     `json:"paths"`     // the RIB
	Routes    List[Route]    `json:"routes"`    // the FIB
	Neighbors List[Neighbor] `json:"neighbors"` // the sessions
}

// NodeTable is the main routing table of one node's kernel.
type NodeTable struct {
	Node   string      `json:"node"`
	Routes List[Route] `json:"routes"`
}

// Unread says, for each source that should have been read and was not, which one it is and why.
func (s Snapshot) Unread() []string {
	var all []string
	add := func(source string, read bool, reason string) {
		if !read {
			all = append(all, fmt.Sprintf("%s: %s", source, reason))
		}
	}
	add("Nodes", s.Nodes.Read, s.Nodes.Error)
	add("CiliumNodes", s.CiliumNodes.Read, s.CiliumNodes.Error)
	add("Pods", s.Pods.Read, s.Pods.Error)
	add("workloads", s.Workloads.Read || s.Workloads.Error == "", s.Workloads.Error)
	add("images of Pods", s.PodImages.Read || s.PodImages.Error == "", s.PodImages.Error)
	add("ConfigMaps", s.ConfigMaps.Read || s.ConfigMaps.Error == "", s.ConfigMaps.Error)
	for _, t := range s.Tags.Items {
		add("the registry's "+t.Image, t.Error == "", t.Error)
	}
	for _, r := range s.Routers {
		add("RIB of "+r.Name, r.Paths.Read, r.Paths.Error)
		add("FIB of "+r.Name, r.Routes.Read, r.Routes.Error)
		add("sessions of "+r.Name, r.Neighbors.Read, r.Neighbors.Error)
	}
	add("Services", s.Services.Read || s.Services.Error == "", s.Services.Error)
	add("EndpointSlices", s.EndpointSlices.Read || s.EndpointSlices.Error == "", s.EndpointSlices.Error)
	for _, p := range s.Proxies {
		add("kube-proxy of "+p.Node, p.Read, p.Error)
	}
	for _, t := range s.NodeTables {
		add("routes of "+t.Node, t.Routes.Read, t.Routes.Error)
	}
	for _, f := range s.Firewalls {
		add("filter table of "+f.Node, f.Rules.Read, f.Rules.Error)
	}
	for _, n := range s.NodeNetworks {
		add("interfaces of "+n.Node, n.Interfaces.Read || n.Interfaces.Error == "", n.Interfaces.Error)
		add("BIRD of "+n.Node, n.BIRD.Read || n.BIRD.Error == "", n.BIRD.Error)
	}
	add("calico-node's settings", s.CalicoAgents.Read || s.CalicoAgents.Error == "", s.CalicoAgents.Error)
	for _, n := range s.NAT {
		add("nat table of "+n.Node, n.Rules.Read, n.Rules.Error)
		add("flows of "+n.Node, n.Flows.Read, n.Flows.Error)
	}
	for _, h := range s.Outside {
		add("sockets of "+h.Host, h.Sockets.Read, h.Sockets.Error)
	}
	return all
}
