package masqueradedrift

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/mariadb"
	"github.com/relapse-dev/relapse/topology"
)

const (
	tor   = "tor"
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

	dbHost        = database(outside.Host("db", 10))
	neighbourHost = database(inside.Host("neighbour", 200))
)

// lab is the cluster that Record draws: routable pods, and two databases that grant to the pod
// range only. The incident's cluster used BGP. Here the ToR has a static route to each node's
// range: what matters is that it has one, so that no pod needs masquerading.
//
// The neighbour shows what the upgrade does not change: the same client, the same
// grant, the same router, but an address in the native CIDR.
var lab = topology.Topology{
	Name: "masquerade-drift", Networks: []topology.Network{nodeNet, outside, inside}, Hosts: []topology.Host{dbHost, neighbourHost},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 27, Nodes: []topology.Node{nodeNet.Node(node1, 11), nodeNet.Node(node2, 12)},
	}},
}.Behind(topology.Static(topology.OneToR(nodeNet, outside, inside)))

func database(h topology.Host) topology.Host {
	h.Image = mariadb.Image
	return h
}

// nodes names the nodes, in the order in which kube-controller-manager gives them their ranges.
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
