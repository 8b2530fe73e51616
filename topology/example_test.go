package topology_test

import (
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

// Two nodes behind one ToR. The worker's address was typed wrongly, and its
// default route names a router that is not there: Validate reports both.
func ExampleTopology_Validate() {
	link := func(network, address string) []topology.Link {
		return []topology.Link{{Network: network, Address: netip.MustParseAddr(address)}}
	}
	lab := topology.Topology{
		Name:     "pair",
		Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.30.4.0/24")}},
		Clusters: []topology.Cluster{{
			Name: "k8s", ASN: 64513,
			PodCIDR: netip.MustParsePrefix("10.30.64.0/20"), NodeMask: 24,
			ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
			Nodes: []topology.Node{
				{Name: "master", Role: topology.ControlPlane, Links: link("nodes", "10.30.4.11"), Via: []string{"tor"}},
				{Name: "worker", Role: topology.Worker, Links: link("nodes", "10.30.5.12"), Via: []string{"tro"}},
			},
		}},
		Routers: []topology.Router{{
			Name: "tor", ASN: 64524, ID: netip.MustParseAddr("10.30.4.1"), Links: link("nodes", "10.30.4.254"),
			Peers: []topology.Peers{{Network: "nodes", ASN: 64513}},
		}},
	}
	fmt.Println(lab.Validate())

	worker := &lab.Clusters[0].Nodes[1]
	worker.Links, worker.Via = link("nodes", "10.30.4.12"), []string{"tor"}
	fmt.Println("corrected:", lab.Validate())
	// Output:
	// topology "pair" cannot be built, 2 problems:
	//   node "worker": 10.30.5.12 is no address of a member in 10.30.4.0/24 of network "nodes", whose first one belongs to the bridge
	//   node "worker": no router "tro"; there are ["tor"]
	// corrected: <nil>
}
