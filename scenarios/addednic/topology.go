package addednic

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/topology"
)

const (
	gateway = "gw"
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"

	coreDNSNode = worker1 // gets the card
)

// card is what the hypervisor plugs in.
var card = fault.NIC{Node: coreDNSNode, Name: "eth1", Address: netip.MustParsePrefix("10.51.7.21/24")}

var (
	podCIDR = netip.MustParsePrefix("10.52.0.0/16")
	nodeNet = topology.NewNetwork("nodes", "10.50.0.0/24")
	onNodes = nodeNet.Last(254)
)

// lab is the cluster that Record draws. With three nodes two have a session without the
// third. The gateway is every node's default route and no more:
// packets that a node has no route for end there.
var lab = topology.Topology{
	Name: "added-nic", Networks: []topology.Network{nodeNet}, Routed: []netip.Prefix{card.Address.Masked()},
	Clusters: []topology.Cluster{{
		ASN:     64512, // Calico's default
		PodCIDR: podCIDR, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker1, 21), nodeNet.Node(worker2, 22)},
	}},
}.Behind([]topology.Router{{Name: gateway, ASN: 64500, ID: onNodes.Address, Links: []topology.Link{onNodes}}})

func addressOf(lab topology.Topology, name string) netip.Addr {
	addr, _ := lab.AddressOn(name, nodeNet.Name)
	return addr
}
