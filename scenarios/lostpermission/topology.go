package lostpermission

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513

	master  = "master"
	worker1 = "worker1" // whose agent is restarted
	worker2 = "worker2"
)

var (
	nodes   = []string{master, worker1, worker2}
	tors    = []string{"tor1", "tor2"}
	pods    = netip.MustParsePrefix("10.68.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.68.4.0/24")
	uplink  = topology.NewNetwork("uplink", "10.68.5.0/24")
)

// lab is the cluster that Record draws.
var lab = topology.Topology{
	Name:     "lost-permission",
	Networks: []topology.Network{nodeNet, uplink},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: pods, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master, topology.ControlPlane, "10.68.4.11"),
			node(worker1, topology.Worker, "10.68.4.21"),
			node(worker2, topology.Worker, "10.68.4.22"),
		},
	}},
	Routers: []topology.Router{
		tor(tors[0], "10.68.4.251", "10.68.5.251"),
		tor(tors[1], "10.68.4.252", "10.68.5.252"),
	},
	Hosts: []topology.Host{{Name: "outside", Links: []topology.Link{uplink.At("10.68.5.10")}, Via: tors}},
}

func node(name string, role topology.Role, address string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(address)}, Via: tors}
}

func tor(name, inner, outer string) topology.Router {
	return topology.Router{
		Name: name, ASN: torASN, ID: netip.MustParseAddr(outer),
		Links: []topology.Link{nodeNet.At(inner), uplink.At(outer)},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: clusterASN, GracefulRestart: true}},
	}
}
