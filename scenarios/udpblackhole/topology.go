package udpblackhole

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	master = "master"
	worker = "worker"
)

var (
	nodes   = []string{master, worker}
	podCIDR = netip.MustParsePrefix("10.67.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.67.4.0/24")
)

// lab is the cluster that Record draws. Senders are on the node of the endpoint and on another
// one. The ToR has static routes to the pods of both nodes.
var lab = topology.Topology{
	Name: "udp-blackhole", Networks: []topology.Network{nodeNet},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 24, Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker, 12)},
	}},
}.Behind(topology.Static(topology.OneToR(nodeNet)))
