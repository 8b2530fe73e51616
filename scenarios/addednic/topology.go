package addednic

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

// lab is a small cluster whose nodes speak BGP with each other:
//
//	           gw .254                         knows the nodes' network and no other
//	   ┌─────────┼─────────┐                   net "nodes"  10.50.0.0/24
//	master    worker1   worker2                AS 64512, node-to-node mesh
//	 .11        .21       .22                  pods in 10.52.0.0/16
//	             │eth1                         the added NIC: 10.51.7.21/24,
//	                                           nobody else on that network
//
// CoreDNS runs on worker1. Three nodes are the fewest on which "the others
// among themselves" means anything. The gateway is every node's default route
// and no more than that: what a node has no route for ends there.
var lab = topology.Topology{
	Name: "added-nic",
	Networks: []topology.Network{
		{Name: "nodes", Subnet: netip.MustParsePrefix("10.50.0.0/24")},
	},
	Clusters: []topology.Cluster{{
		Name:        "k8s",
		ASN:         clusterASN,
		PodCIDR:     podCIDR,
		NodeMask:    24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node("master", topology.ControlPlane, "10.50.0.11"),
			node("worker1", topology.Worker, "10.50.0.21"),
			node("worker2", topology.Worker, "10.50.0.22"),
		},
	}},
	Routers: []topology.Router{{
		Name: "gw", ASN: 64500, ID: gateway,
		Links: []topology.Link{{Network: "nodes", Address: gateway}},
	}},
}

// clusterASN is the one that Calico takes unless it is told another.
const clusterASN = 64512

var (
	podCIDR = netip.MustParsePrefix("10.52.0.0/16")
	gateway = netip.MustParseAddr("10.50.0.254")
)

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{
		Name: name, Role: role,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(addr)}},
		Via:   []string{"gw"},
	}
}
