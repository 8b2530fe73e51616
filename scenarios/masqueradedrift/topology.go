package masqueradedrift

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513
)

// nativeCIDR is the incident's native-routing-cidr: what goes to it is never
// masqueraded. Pods have one half of it, other machines the other.
var (
	nativeCIDR = netip.MustParsePrefix("10.20.30.0/24")
	podCIDR    = netip.MustParsePrefix("10.20.30.0/25")
)

// Addresses of the ToR and of the databases behind it.
var (
	torOnNodes  = netip.MustParseAddr("10.20.28.254")
	torOutside  = netip.MustParseAddr("10.20.29.254")
	torInside   = netip.MustParseAddr("10.20.30.254")
	dbAddr      = netip.MustParseAddr("10.20.29.10")
	neighbourIP = netip.MustParseAddr("10.20.30.200")
)

// lab is a small cluster with routable pods, and two databases that grant to
// the pod range only:
//
//	db 10.20.29.10       neighbour 10.20.30.200
//	   │                     │
//	   │ "outside"           │ "inside" 10.20.30.128/25: the half of the
//	   │ 10.20.29.0/24       │ native CIDR that the pods do not have
//	   └──────── tor ────────┘
//	              │           "nodes" 10.20.28.0/24
//	        ┌─────┴─────┐
//	      node1       node2   pods in 10.20.30.0/25, a /27 each
//
// The incident's cluster spoke BGP. Here the ToR has a static route to each
// node's range: nothing of the incident depends on how the routers know the
// way. What matters is that they know it, so that no pod needs masquerading.
//
// The neighbour shows what the upgrade leaves alone: the same client, the same
// grant, the same router, but an address in the native CIDR.
var lab = topology.Topology{
	Name: "masquerade-drift",
	Networks: []topology.Network{
		{Name: "nodes", Subnet: netip.MustParsePrefix("10.20.28.0/24")},
		{Name: "outside", Subnet: netip.MustParsePrefix("10.20.29.0/24")},
		{Name: "inside", Subnet: netip.MustParsePrefix("10.20.30.128/25")},
	},
	Clusters: []topology.Cluster{{
		Name:        "k8s",
		ASN:         clusterASN,
		PodCIDR:     podCIDR,
		NodeMask:    27,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node("node1", topology.ControlPlane, "10.20.28.11"),
			node("node2", topology.Worker, "10.20.28.12"),
		},
	}},
	Routers: []topology.Router{{
		Name: "tor", ASN: torASN, ID: torOnNodes,
		Links: []topology.Link{
			{Network: "nodes", Address: torOnNodes},
			{Network: "outside", Address: torOutside},
			{Network: "inside", Address: torInside},
		},
	}},
	Hosts: []topology.Host{
		{
			Name: "db", Image: mariadb.Image, Via: []string{"tor"},
			Links: []topology.Link{{Network: "outside", Address: dbAddr}},
		},
		{
			Name: "neighbour", Image: mariadb.Image, Via: []string{"tor"},
			Links: []topology.Link{{Network: "inside", Address: neighbourIP}},
		},
	},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{
		Name: name, Role: role,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(addr)}},
		Via:   []string{"tor"},
	}
}

// nodes names the nodes, in the order in which kube-controller-manager gives
// them their ranges.
var nodes = []string{"node1", "node2"}

// rangeOf is the range that kube-controller-manager gives to a node's pods: the
// first free one, in the order of the nodes.
var rangeOf = map[string]netip.Prefix{
	"node1": netip.MustParsePrefix("10.20.30.0/27"),
	"node2": netip.MustParsePrefix("10.20.30.32/27"),
}

// addressOf is a node's address, which its pods are hidden behind.
func addressOf(name string) netip.Addr {
	addr, _ := lab.AddressOn(name, "nodes")
	return addr
}
