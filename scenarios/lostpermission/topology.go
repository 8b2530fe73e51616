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
var lab = func() topology.Topology {
	lab := topology.BehindToRs("lost-permission", nodeNet, uplink, topology.Cluster{
		PodCIDR: pods, NodeMask: 24,
		Nodes: []topology.Node{
			{Name: master, Role: topology.ControlPlane, Links: []topology.Link{nodeNet.At("10.68.4.11")}},
			{Name: worker1, Role: topology.Worker, Links: []topology.Link{nodeNet.At("10.68.4.21")}},
			{Name: worker2, Role: topology.Worker, Links: []topology.Link{nodeNet.At("10.68.4.22")}},
		},
	})
	for i := range lab.Routers {
		lab.Routers[i].Peers[0].GracefulRestart = true
	}
	return lab
}()
