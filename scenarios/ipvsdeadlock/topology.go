package ipvsdeadlock

import (
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/topology"
)

// The machines of the lab.
const (
	master   = "master"
	backends = "backends"
)

var edges = []string{"edge1", "edge2", "edge3", "edge4"}

var (
	podCIDR = netip.MustParsePrefix("10.30.64.0/20")
	// Both ranges are routed to backends. The load's connections lead to addresses of the first;
	// the endpoints of the churned Services go through those of the second.
	busyRange  = netip.MustParsePrefix("10.30.132.0/24")
	churnRange = netip.MustParsePrefix("10.30.133.0/24")

	nodeNet = topology.NewNetwork("nodes", "10.30.4.0/24")
)

// lab is the cluster that Record draws, with these edges. A kube-proxy runs on each edge,
// and none on master. The edges have a kernel of their own, because the machine's may have
// no IPVS. Endpoints of Services are elsewhere, so that every connection through an edge's
// IPVS table crosses a network.
func lab(nodes ...string) topology.Topology {
	cluster := topology.Cluster{PodCIDR: podCIDR, NodeMask: 24, Nodes: []topology.Node{nodeNet.Node(master, 11)}}
	for _, name := range slices.Compact(slices.Clone(nodes)) {
		edge := nodeNet.Node(name, 21+byte(slices.Index(edges, name)))
		edge.Kernel = "6.1"
		cluster.Nodes = append(cluster.Nodes, edge)
	}
	return topology.Topology{
		Name: "ipvs-deadlock", Networks: []topology.Network{nodeNet}, Clusters: []topology.Cluster{cluster},
		Routed: []netip.Prefix{busyRange, churnRange}, Hosts: []topology.Host{nodeNet.Host(backends, 31)},
	}.Behind(topology.OneToR(nodeNet))
}
