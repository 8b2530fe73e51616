package unpinnedimage

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	tor     = "tor"
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var (
	podCIDR = netip.MustParsePrefix("10.20.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.20.4.0/24")
	uplink  = topology.NewNetwork("uplink", "10.20.5.0/24")
)

// lab is the cluster that Record draws. One ToR and not two: nothing of the incident
// depends on ECMP. Three nodes are enough to watch a rollout from node to node.
//
// The nodes peer with the ToR because that shows all of the damage: its RIB says which node is
// lost, and pods of different nodes as well as the outside depend on it. With iBGP off, as at the
// start of the incident, the nodes have no routes to each other's ranges.
var lab = topology.Topology{
	Name: "unpinned-image", Networks: []topology.Network{nodeNet, uplink}, Hosts: []topology.Host{uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker1, 21), nodeNet.Node(worker2, 22)},
	}},
}.Behind(topology.GracefulRestart(topology.OneToR(nodeNet, uplink)))
