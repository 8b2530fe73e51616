package example

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513
)

var (
	nodeNet = topology.NewNetwork("nodes", "10.40.4.0/24")
	uplink  = topology.NewNetwork("uplink", "10.40.5.0/24")

	onNodes = nodeNet.At("10.40.4.254")
	tor     = topology.Router{
		Name: "tor", ASN: torASN, ID: onNodes.Address,
		Links: []topology.Link{onNodes, uplink.At("10.40.5.254")},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: clusterASN, GracefulRestart: true}},
	}
	// outside is a host beyond the ToR, where users are.
	outside = topology.Host{Name: "outside", Links: []topology.Link{uplink.At("10.40.5.10")}, Via: []string{tor.Name}}
)

// lab is the cluster that Record draws: two nodes behind one ToR.
var lab = topology.Topology{
	Name:     "half-upgrade",
	Networks: []topology.Network{nodeNet, uplink},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN,
		PodCIDR: netip.MustParsePrefix("10.40.64.0/20"), NodeMask: 24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node("master", topology.ControlPlane, "10.40.4.11"),
			node("worker", topology.Worker, "10.40.4.12"),
		},
	}},
	Routers: []topology.Router{tor},
	Hosts:   []topology.Host{outside},
}

func node(name string, role topology.Role, address string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(address)}, Via: []string{tor.Name}}
}
