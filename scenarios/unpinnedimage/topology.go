package unpinnedimage

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513
)

// lab is a small cluster whose nodes' kube-routers peer with one ToR:
//
//	          outside 10.20.5.10
//	             │                    net "uplink" 10.20.5.0/24
//	          tor .254                AS 64524
//	   ┌─────────┼─────────┐          net "nodes"  10.20.4.0/24
//	master    worker1   worker2       AS 64513
//	 .11        .21       .22         pods in 10.20.64.0/20
//
// One ToR and not two: nothing of the incident depends on ECMP. Three nodes
// are enough to watch a rollout go from node to node.
//
// The nodes peer with the ToR, and not only with each other, because that
// shows all of the damage: the ToR's RIB says which node is gone, and pods of
// different nodes as well as the outside depend on it. With iBGP off, which is
// how the incident begins, the nodes do not know each other's ranges at all.
var lab = topology.Topology{
	Name: "unpinned-image",
	Networks: []topology.Network{
		{Name: "nodes", Subnet: netip.MustParsePrefix("10.20.4.0/24")},
		{Name: "uplink", Subnet: netip.MustParsePrefix("10.20.5.0/24")},
	},
	Clusters: []topology.Cluster{{
		Name:        "k8s",
		ASN:         clusterASN,
		PodCIDR:     podCIDR,
		NodeMask:    24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master, topology.ControlPlane, "10.20.4.11"),
			node(worker1, topology.Worker, "10.20.4.21"),
			node(worker2, topology.Worker, "10.20.4.22"),
		},
	}},
	Routers: []topology.Router{{
		Name: "tor", ASN: torASN, ID: torAddress,
		Links: []topology.Link{
			{Network: "nodes", Address: torAddress},
			{Network: "uplink", Address: netip.MustParseAddr("10.20.5.254")},
		},
		Peers: []topology.Peers{{Network: "nodes", ASN: clusterASN, GracefulRestart: true}},
	}},
	Hosts: []topology.Host{outside},
}

// The nodes.
const (
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var outside = topology.Host{
	Name:  "outside",
	Links: []topology.Link{{Network: "uplink", Address: netip.MustParseAddr("10.20.5.10")}},
	Via:   []string{"tor"},
}

var (
	podCIDR    = netip.MustParsePrefix("10.20.64.0/20")
	torAddress = netip.MustParseAddr("10.20.4.254")
)

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{
		Name: name, Role: role,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(addr)}},
		Via:   []string{"tor"},
	}
}
