package addednic

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	clusterASN = 64512 // Calico's default

	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var (
	podCIDR = netip.MustParsePrefix("10.52.0.0/16")
	nodeNet = topology.NewNetwork("nodes", "10.50.0.0/24")
	onNodes = nodeNet.At("10.50.0.254")
	gateway = topology.Router{Name: "gw", ASN: 64500, ID: onNodes.Address, Links: []topology.Link{onNodes}}
)

// lab is the cluster that Record draws. Three nodes are the fewest of which two have a
// session without the third. The gateway is every node's default route and no more:
// packets that a node has no route for end there.
var lab = topology.Topology{
	Name:     "added-nic",
	Networks: []topology.Network{nodeNet},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master, topology.ControlPlane, "10.50.0.11"),
			node(worker1, topology.Worker, "10.50.0.21"),
			node(worker2, topology.Worker, "10.50.0.22"),
		},
	}},
	Routers: []topology.Router{gateway},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(addr)}, Via: []string{gateway.Name}}
}

// addressOf is the address of a node or the gateway on the nodes' network of a lab.
func addressOf(lab topology.Topology, name string) netip.Addr {
	addr, _ := lab.AddressOn(name, nodeNet.Name)
	return addr
}
