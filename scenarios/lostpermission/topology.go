package lostpermission

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
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

// lab is the cluster that Record draws. The ToRs keep the routes of an agent that restarts.
var lab = topology.Topology{
	Name: "lost-permission", Networks: []topology.Network{nodeNet, uplink}, Hosts: []topology.Host{uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: pods, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(worker1, 21), nodeNet.Node(worker2, 22)},
	}},
}.Behind(topology.GracefulRestart(topology.TwoToRs(nodeNet, uplink)))
