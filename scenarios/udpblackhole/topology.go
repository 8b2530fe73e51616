package udpblackhole

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	clusterASN = 64513

	master = "master"
	worker = "worker"
)

var (
	nodes   = []string{master, worker}
	podCIDR = netip.MustParsePrefix("10.67.64.0/20")
	nodeNet = topology.NewNetwork("nodes", "10.67.4.0/24")
	onNodes = nodeNet.At("10.67.4.254")
	tor     = topology.Router{Name: "tor", ASN: 64524, ID: onNodes.Address, Links: []topology.Link{onNodes}}
)

// lab is the cluster that Record draws. Senders are on the node of the endpoint and on another
// one. The ToR has static routes to the pods of both nodes.
var lab = topology.Topology{
	Name:     "udp-blackhole",
	Networks: []topology.Network{nodeNet},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master, topology.ControlPlane, "10.67.4.11"),
			node(worker, topology.Worker, "10.67.4.12"),
		},
	}},
	Routers: []topology.Router{tor},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(addr)}, Via: []string{tor.Name}}
}
