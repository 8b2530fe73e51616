package topology

import "net/netip"

// NewNetwork declares a network. It panics if the subnet is no prefix.
func NewNetwork(name, subnet string) Network {
	return Network{Name: name, Subnet: netip.MustParsePrefix(subnet)}
}

// At is a link to the network. It panics if the address is none.
func (n Network) At(address string) Link {
	return Link{Network: n.Name, Address: netip.MustParseAddr(address)}
}

// The AS numbers of labs: of the ToRs, and of a cluster.
const (
	TorASN     uint32 = 64524
	ClusterASN uint32 = 64513
)

// BehindToRs declares the lab of most BGP incidents. Nodes need a name, a role and a link to the
// network nodes:
//
//	     outside .10             net uplink
//	tor1 .251     tor2 .252      TorASN; a session with each node that speaks BGP
//	      the nodes              net nodes; default route over both ToRs
//
// The cluster is "k8s", its AS is ClusterASN, and Services are in 10.96.0.0/16. It panics if a
// network's subnet is not an IPv4 /24.
func BehindToRs(lab string, nodes, uplink Network, c Cluster) Topology {
	tors := []string{"tor1", "tor2"}
	c.Name, c.ASN, c.ServiceCIDR = "k8s", ClusterASN, netip.MustParsePrefix("10.96.0.0/16")
	for i := range c.Nodes {
		c.Nodes[i].Via = tors
	}
	t := Topology{
		Name: lab, Networks: []Network{nodes, uplink}, Clusters: []Cluster{c},
		Hosts: []Host{{Name: "outside", Links: []Link{uplink.host(10)}, Via: tors}},
	}
	for i, name := range tors {
		inner, outer := nodes.host(251+byte(i)), uplink.host(251+byte(i))
		t.Routers = append(t.Routers, Router{
			Name: name, ASN: TorASN, ID: outer.Address, Links: []Link{inner, outer},
			Peers: []Peers{{Network: nodes.Name, ASN: ClusterASN}},
		})
	}
	return t
}

// host is a link to an IPv4 /24, by the last byte of the address.
func (n Network) host(last byte) Link {
	if n.Subnet.Bits() != 24 {
		panic("network " + n.Name + ": " + n.Subnet.String() + " is not a /24")
	}
	address := n.Subnet.Addr().As4()
	address[3] = last
	return Link{Network: n.Name, Address: netip.AddrFrom4(address)}
}
