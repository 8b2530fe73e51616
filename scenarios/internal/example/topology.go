package example

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513
)

var torAddress = netip.MustParseAddr("10.40.4.254")

// outside is a host beyond the ToR, where users are.
var outside = topology.Host{
	Name:  "outside",
	Links: []topology.Link{{Network: "uplink", Address: netip.MustParseAddr("10.40.5.10")}},
	Via:   []string{"tor"},
}

// lab is two nodes behind one ToR:
//
//	    outside .10
//	       │           net "uplink" 10.40.5.0/24
//	    tor .254       AS 64524
//	   ┌───┴────┐      net "nodes"  10.40.4.0/24
//	master   worker    AS 64513
//	 .11      .12      pods in 10.40.64.0/24 and 10.40.65.0/24
var lab = topology.Topology{
	Name: "half-upgrade",
	Networks: []topology.Network{
		{Name: "nodes", Subnet: netip.MustParsePrefix("10.40.4.0/24")},
		{Name: "uplink", Subnet: netip.MustParsePrefix("10.40.5.0/24")},
	},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN,
		PodCIDR: netip.MustParsePrefix("10.40.64.0/20"), NodeMask: 24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node("master", topology.ControlPlane, "10.40.4.11"),
			node("worker", topology.Worker, "10.40.4.12"),
		},
	}},
	Routers: []topology.Router{{
		Name: "tor", ASN: torASN, ID: torAddress,
		Links: []topology.Link{
			{Network: "nodes", Address: torAddress},
			{Network: "uplink", Address: netip.MustParseAddr("10.40.5.254")},
		},
		Peers: []topology.Peers{{Network: "nodes", ASN: clusterASN, GracefulRestart: true}},
	}},
	Hosts: []topology.Host{outside},
}

func node(name string, role topology.Role, address string) topology.Node {
	return topology.Node{
		Name: name, Role: role,
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(address)}},
		Via:   []string{"tor"},
	}
}
