package ipvsdeadlock

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

// lab is a cluster of two nodes, one of which has a kernel of its own, and
// the machine behind the load's endpoints:
//
//	            tor .254                  AS 64524
//	   ┌───────────┼────────────┐         net "nodes" 10.30.4.0/24
//	master .11  edge .21   backends .31   10.30.132.0/23
//	(control     (guest,
//	 plane)     kernel 6.1)               pods in 10.30.64.0/20
//
// kube-proxy runs on edge alone. The machine's own kernel may have no IPVS.
// What a Service leads to is elsewhere, so that every connection through
// edge's IPVS table crosses a network.
var lab = topology.Topology{
	Name:     "ipvs-deadlock",
	Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.30.4.0/24")}},
	Clusters: []topology.Cluster{{
		Name:        "k8s",
		ASN:         64513,
		PodCIDR:     podCIDR,
		NodeMask:    24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			{
				Name: master, Role: topology.ControlPlane, Via: []string{"tor"},
				Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.30.4.11")}},
			},
			{
				Name: edge, Role: topology.Worker, Via: []string{"tor"}, Kernel: "6.1",
				Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.30.4.21")}},
			},
		},
	}},
	Routers: []topology.Router{{
		Name: "tor", ASN: 64524, ID: netip.MustParseAddr("10.30.4.254"),
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.30.4.254")}},
		Peers: []topology.Peers{{Network: "nodes", ASN: 64513}},
	}},
	Hosts: []topology.Host{{
		Name:  backends,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.30.4.31")}},
		Via:   []string{"tor"},
	}},
}

// The machines of the lab.
const (
	master   = "master"
	edge     = "edge"
	backends = "backends"
)

var (
	podCIDR = netip.MustParsePrefix("10.30.64.0/20")
	// Both ranges are routed to backends. The load's connections lead to
	// addresses of the first; the endpoints of the churned Services go through
	// those of the second.
	busyRange  = netip.MustParsePrefix("10.30.132.0/24")
	churnRange = netip.MustParsePrefix("10.30.133.0/24")
)
