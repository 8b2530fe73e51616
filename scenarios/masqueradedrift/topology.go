package masqueradedrift

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/topology"
)

const (
	torASN     = 64524
	clusterASN = 64513

	node1 = "node1"
	node2 = "node2"
)

var (
	// nativeCIDR is the incident's native-routing-cidr: what goes to it is never
	// masqueraded. Pods have one half of it, other machines the other.
	nativeCIDR = netip.MustParsePrefix("10.20.30.0/24")
	podCIDR    = netip.MustParsePrefix("10.20.30.0/25")

	nodeNet = topology.NewNetwork("nodes", "10.20.28.0/24")
	outside = topology.NewNetwork("outside", "10.20.29.0/24")
	inside  = topology.Network{
		Name: "inside", Subnet: netip.MustParsePrefix("10.20.30.128/25"), Fixed: "it is a half of the incident's native CIDR",
	}

	onNodes = nodeNet.At("10.20.28.254")
	tor     = topology.Router{
		Name: "tor", ASN: torASN, ID: onNodes.Address,
		Links: []topology.Link{onNodes, outside.At("10.20.29.254"), inside.At("10.20.30.254")},
	}
	dbHost        = database("db", outside.At("10.20.29.10"))
	neighbourHost = database("neighbour", inside.At("10.20.30.200"))
)

// lab is the cluster that Record draws: routable pods, and two databases that grant to
// the pod range only. The incident's cluster used BGP. Here the ToR has a static route
// to each node's range: what matters is that it has one, so that no pod needs
// masquerading.
//
// The neighbour shows what the upgrade does not change: the same client, the same
// grant, the same router, but an address in the native CIDR.
var lab = topology.Topology{
	Name:     "masquerade-drift",
	Networks: []topology.Network{nodeNet, outside, inside},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 27, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(node1, topology.ControlPlane, "10.20.28.11"),
			node(node2, topology.Worker, "10.20.28.12"),
		},
	}},
	Routers: []topology.Router{tor},
	Hosts:   []topology.Host{dbHost, neighbourHost},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(addr)}, Via: []string{tor.Name}}
}

func database(name string, link topology.Link) topology.Host {
	return topology.Host{Name: name, Image: mariadb.Image, Via: []string{tor.Name}, Links: []topology.Link{link}}
}

// nodes names the nodes, in the order in which kube-controller-manager gives
// them their ranges.
var nodes = []string{node1, node2}

// rangeOf is the range that kube-controller-manager gives to a node's pods: the
// first free one, in the order of the nodes.
var rangeOf = map[string]netip.Prefix{
	node1: netip.MustParsePrefix("10.20.30.0/27"),
	node2: netip.MustParsePrefix("10.20.30.32/27"),
}

// addressOf is the address of a node's or a host's eth0 in the lab. A node's pods are hidden
// behind its own.
func addressOf(r *framework.Run, name string) netip.Addr {
	member, _ := r.Topology.Member(name)
	return member.Links[0].Address
}
