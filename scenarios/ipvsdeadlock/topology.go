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

const clusterASN = 64513

var (
	podCIDR = netip.MustParsePrefix("10.30.64.0/20")
	// Both ranges are routed to backends. The load's connections lead to
	// addresses of the first; the endpoints of the churned Services go through
	// those of the second.
	busyRange  = netip.MustParsePrefix("10.30.132.0/24")
	churnRange = netip.MustParsePrefix("10.30.133.0/24")

	nodeNet = topology.NewNetwork("nodes", "10.30.4.0/24")
	onNodes = nodeNet.At("10.30.4.254")
	tor     = topology.Router{
		Name: "tor", ASN: 64524, ID: onNodes.Address, Links: []topology.Link{onNodes},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: clusterASN}},
	}
	via = []string{tor.Name}
)

// lab is the cluster that Record draws, with these edges. A kube-proxy runs on each edge,
// and none on master. The edges have a kernel of their own, because the machine's may have
// no IPVS. Endpoints of Services are elsewhere, so that every connection through an edge's
// IPVS table crosses a network.
func lab(nodes ...string) topology.Topology {
	cluster := topology.Cluster{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{{
			Name: master, Role: topology.ControlPlane, Via: via, Links: []topology.Link{nodeNet.At("10.30.4.11")},
		}},
	}
	for _, name := range slices.Compact(slices.Clone(nodes)) {
		at := netip.AddrFrom4([4]byte{10, 30, 4, 21 + byte(slices.Index(edges, name))})
		cluster.Nodes = append(cluster.Nodes, topology.Node{
			Name: name, Role: topology.Worker, Via: via, Kernel: "6.1",
			Links: []topology.Link{{Network: nodeNet.Name, Address: at}},
		})
	}
	return topology.Topology{
		Name:     "ipvs-deadlock",
		Networks: []topology.Network{nodeNet},
		Clusters: []topology.Cluster{cluster},
		Routers:  []topology.Router{tor},
		Routed:   []netip.Prefix{busyRange, churnRange},
		Hosts:    []topology.Host{{Name: backends, Links: []topology.Link{nodeNet.At("10.30.4.31")}, Via: via}},
	}
}
