package ipvsdeadlock

import (
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/topology"
)

// lab is a cluster with nodes that have a kernel of their own, and the machine
// behind the load's endpoints:
//
//	                          tor .254                         AS 64524
//	   ┌─────────┬─────────┬─────┴───┬─────────┬─────────┐     net "nodes" 10.30.4.0/24
//	master .11 edge1 .21 edge2 .22 edge3 .23 edge4 .24 backends .31
//	(control  (guests, kernel 6.1)                     10.30.132.0/23
//	 plane)                                                    pods in 10.30.64.0/20
//
// A kube-proxy runs on each edge, and none on master. The machine's own kernel may
// have no IPVS. What a Service leads to is elsewhere, so that every connection
// through an edge's IPVS table crosses a network.
func lab(nodes ...string) topology.Topology {
	t := topology.Topology{
		Name:     "ipvs-deadlock",
		Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.30.4.0/24")}},
		Clusters: []topology.Cluster{{
			Name:        "k8s",
			ASN:         64513,
			PodCIDR:     podCIDR,
			NodeMask:    24,
			ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
			Nodes: []topology.Node{{
				Name: master, Role: topology.ControlPlane, Via: []string{"tor"},
				Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.30.4.11")}},
			}},
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
	for _, name := range slices.Compact(slices.Clone(nodes)) {
		at := netip.AddrFrom4([4]byte{10, 30, 4, 21 + byte(slices.Index(edges, name))})
		t.Clusters[0].Nodes = append(t.Clusters[0].Nodes, topology.Node{
			Name: name, Role: topology.Worker, Via: []string{"tor"}, Kernel: "6.1",
			Links: []topology.Link{{Network: "nodes", Address: at}},
		})
	}
	return t
}

// The machines of the lab.
const (
	master   = "master"
	backends = "backends"
)

var edges = []string{"edge1", "edge2", "edge3", "edge4"}

var (
	podCIDR = netip.MustParsePrefix("10.30.64.0/20")
	// Both ranges are routed to backends. The load's connections lead to
	// addresses of the first; the endpoints of the churned Services go through
	// those of the second.
	busyRange  = netip.MustParsePrefix("10.30.132.0/24")
	churnRange = netip.MustParsePrefix("10.30.133.0/24")
)
