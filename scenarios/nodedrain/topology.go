package nodedrain

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

// The incident's numbers.
const (
	torASN     = 64524
	clusterASN = 64513
)

var podCIDR = netip.MustParsePrefix("10.5.112.0/21")

// lab is the incident's cluster and what is around it:
//
//	            outside 10.4.36.10
//	                  │
//	    ┌─────────────┴────────────┐            net "uplink"  10.4.36.0/24
//	 .239 tor1                 tor2 .238        AS 64524
//	    └──────┬────────────┬──────┘            net "nodes"   10.4.94.0/24
//	  ┌────────┴─┬──────────┼──────────┐
//	master1   master2    master3     node1      AS 64513
//	  .32       .21        .31        .23       pods in 10.5.112.0/21
//
// Names and addresses are the incident's. master1 is the only control plane:
// in the incident all three masters were, which changes nothing for the
// routes. The ToRs' addresses in the nodes' network end like their own.
//
// The order of the nodes is the order in which kube-controller-manager gives
// them their Node.spec.podCIDRs.
var lab = topology.Topology{
	Name: "node-drain",
	Networks: []topology.Network{
		{Name: "nodes", Subnet: netip.MustParsePrefix("10.4.94.0/24")},
		{Name: "uplink", Subnet: netip.MustParsePrefix("10.4.36.0/24")},
	},
	Clusters: []topology.Cluster{{
		Name:        "k8s",
		ASN:         clusterASN,
		PodCIDR:     podCIDR,
		NodeMask:    24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node("master1", topology.ControlPlane, "10.4.94.32"),
			node("master3", topology.Worker, "10.4.94.31"),
			node("master2", topology.Worker, "10.4.94.21"),
			node("node1", topology.Worker, "10.4.94.23"),
		},
	}},
	Routers: []topology.Router{
		tor("tor1", "10.4.36.239", "10.4.94.239"),
		tor("tor2", "10.4.36.238", "10.4.94.238"),
	},
	Hosts: []topology.Host{{
		Name:  "outside",
		Links: []topology.Link{{Network: "uplink", Address: netip.MustParseAddr("10.4.36.10")}},
		Via:   []string{"tor1", "tor2"},
	}},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{
		Name: name, Role: role,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(addr)}},
		Via:   []string{"tor1", "tor2"},
	}
}

func tor(name, uplink, nodes string) topology.Router {
	return topology.Router{
		Name: name, ASN: torASN, ID: netip.MustParseAddr(uplink),
		Links: []topology.Link{
			{Network: "uplink", Address: netip.MustParseAddr(uplink)},
			{Network: "nodes", Address: netip.MustParseAddr(nodes)},
		},
		Peers: []topology.Peers{{Network: "nodes", ASN: clusterASN}},
	}
}

// addressOf is the address of a node or router on the nodes' network.
func addressOf(name string) netip.Addr {
	addr, _ := lab.AddressOn(name, "nodes")
	return addr
}
