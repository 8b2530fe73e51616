package cordonwithdraws

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	master  = "master"
	worker1 = "worker1"
	worker2 = "worker2"
)

var (
	nodes     = []string{master, worker1, worker2}
	announce  = []string{worker1, worker2} // and are cordoned
	tors      = []string{"tor1", "tor2"}
	nodeNet   = topology.NewNetwork("nodes", "10.66.4.0/24")
	uplink    = topology.NewNetwork("uplink", "10.66.5.0/24")
	addresses = netip.MustParsePrefix("10.66.128.0/24") // of Services
)

// lab is the cluster that Record draws.
var lab = func() topology.Topology {
	lab := topology.BehindToRs("cordon-withdraws", nodeNet, uplink, topology.Cluster{
		PodCIDR: netip.MustParsePrefix("10.66.64.0/20"), NodeMask: 24,
		Nodes: []topology.Node{
			{Name: master, Role: topology.ControlPlane, Links: []topology.Link{nodeNet.At("10.66.4.11")}},
			{Name: worker1, Role: topology.Worker, Links: []topology.Link{nodeNet.At("10.66.4.21")}},
			{Name: worker2, Role: topology.Worker, Links: []topology.Link{nodeNet.At("10.66.4.22")}},
		},
	})
	lab.Routed = []netip.Prefix{addresses}
	return lab
}()
