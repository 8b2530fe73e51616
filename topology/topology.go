// Package topology declares labs: networks, clusters with their nodes, BGP routers and hosts, and their
// links. A Topology is plain data, with validation and look-ups only.
// The package imports nothing of the project and starts no container. Package kindlab brings a
// topology up, package containerlab writes it as a file.
//
// Nodes, routers and hosts share one name space. Their names, after the lab's
// name and a dash, become host names: 63 characters at most together.
package topology

import (
	"net/netip"
	"time"
)

// Topology is the declaration of one lab. The zero value is an empty lab;
// Validate reports whether it can be built.
type Topology struct {
	// Name is part of the name of every container, network and rule of the lab.
	// It has lower-case letters, digits and dashes, 32 characters at most.
	Name string
	// Dual gives all members of the lab IPv6 beside IPv4, at the addresses that Family.Addr derives.
	Dual     bool
	Networks []Network
	Clusters []Cluster
	Routers  []Router
	Hosts    []Host
	// Routed are further ranges that exist inside the lab, because a scenario adds routes to
	// them or a card in them. They overlap no other range of the lab.
	Routed []netip.Prefix
}

// Network is one broadcast domain: a bridge without an uplink.
type Network struct {
	// Name is unique among networks, 15 characters at most.
	Name string
	// Subnet is the network's IPv4 prefix. Its first address belongs to the
	// bridge on the machine that runs the lab; members may have any other.
	Subnet netip.Prefix
	// Fixed is the reason why the network keeps its subnet where others move
	// (Topology.Within), as a clause; empty: it can move.
	Fixed string
}

// Link attaches a member (node, router or host) to a network. The first link
// of a member is its eth0, the second its eth1, and so on. A member has at
// least one link, and one at most to each network.
type Link struct {
	Network string
	Address netip.Addr
}

// Role is the role of a node in its cluster.
type Role string

// Roles of a node.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
)

// Cluster is one Kubernetes cluster.
type Cluster struct {
	Name string
	// ASN is the autonomous system of the cluster's nodes.
	ASN uint32
	// PodCIDR is split into one Node.spec.podCIDR for each node, with a prefix length of NodeMask.
	PodCIDR  netip.Prefix
	NodeMask int
	// ServiceCIDR holds the ClusterIPs.
	ServiceCIDR netip.Prefix
	// Nodes get their Node.spec.podCIDRs in this order, the lowest first. The first
	// one is the control plane, the others are workers.
	Nodes []Node
}

// Node is one Kubernetes node.
type Node struct {
	// Name is the name of the Node object.
	Name  string
	Role  Role
	Links []Link
	// Via names the routers that hold the node's default route. With several the route has one next
	// hop for each (ECMP). It is never empty: a member has no other default gateway.
	Via []string
	// Kernel requests a guest with this kernel, one of Kernels, in place of a
	// container on the machine's own kernel. Control planes have none. A guest
	// under User Mode Linux runs that kernel instead; the report names it.
	Kernel string
}

// Kernels are the kernels that a guest can have: Debian's, by release series.
var Kernels = []string{"6.1", "6.12"}

// RouterKind is the software of a router.
type RouterKind string

// Kinds of routers. FRR and BIRD are Debian's packages. They install their routes in the
// kernel themselves; for GoBGP the lab's own router program does.
const (
	GoBGP RouterKind = "gobgp"
	FRR   RouterKind = "frr"
	BIRD  RouterKind = "bird"
)

// RouterKinds are the kinds of routers, the default first.
var RouterKinds = []RouterKind{GoBGP, FRR, BIRD}

// Router is a BGP router, such as a ToR.
type Router struct {
	Name string
	// Kind is the software that speaks BGP, one of RouterKinds. Empty selects GoBGP.
	Kind RouterKind
	ASN  uint32
	// ID is the BGP identifier; by convention one of the router's addresses.
	ID    netip.Addr
	Links []Link
	// Peers are the dynamic neighbours from which the router accepts sessions.
	// The router never opens a session to them.
	Peers []Peers
}

// Peers are the dynamic BGP neighbours of a router on one network.
type Peers struct {
	Network string
	ASN     uint32
	// GracefulRestart keeps the routes of a restarting peer that has asked for
	// it, for the restart time that the peer announced (RFC 4724).
	GracefulRestart bool
	// BFD has the router detect within BFD's times that a peer is gone. FRR alone has it.
	BFD BFD
}

// BFD are the settings of BFD (RFC 5880). The zero value: there is none.
type BFD struct {
	Receive    time.Duration `json:"receive"`
	Transmit   time.Duration `json:"transmit"`
	Multiplier int           `json:"multiplier"`
}

// Host is a machine outside every cluster.
type Host struct {
	Name  string
	Links []Link
	// Via names the routers that hold the host's default route, as in Node.
	Via []string
	// Image is the image of a host that offers a service. It must be built on the common host
	// image, because the probe agent runs in it too. Empty selects the common image.
	Image string
}
