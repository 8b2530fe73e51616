package unpinnedimage

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513

	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var (
	podCIDR = netip.MustParsePrefix("10.20.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.20.4.0/24")
	uplink  = topology.NewNetwork("uplink", "10.20.5.0/24")

	onNodes = nodeNet.At("10.20.4.254")
	tor     = topology.Router{
		Name: "tor", ASN: torASN, ID: onNodes.Address,
		Links: []topology.Link{onNodes, uplink.At("10.20.5.254")},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: clusterASN, GracefulRestart: true}},
	}
	outside = topology.Host{Name: "outside", Links: []topology.Link{uplink.At("10.20.5.10")}, Via: []string{tor.Name}}
)

// lab is the cluster that Record draws. One ToR and not two: nothing of the incident
// depends on ECMP. Three nodes are enough to watch a rollout from node to node.
//
// The nodes peer with the ToR because that shows all of the damage: its RIB says which
// node is lost, and pods of different nodes as well as the outside depend on it. With
// iBGP off, as at the start of the incident, the nodes have no routes to each other's
// ranges.
var lab = topology.Topology{
	Name:     "unpinned-image",
	Networks: []topology.Network{nodeNet, uplink},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master, topology.ControlPlane, "10.20.4.11"),
			node(worker1, topology.Worker, "10.20.4.21"),
			node(worker2, topology.Worker, "10.20.4.22"),
		},
	}},
	Routers: []topology.Router{tor},
	Hosts:   []topology.Host{outside},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(addr)}, Via: []string{tor.Name}}
}
