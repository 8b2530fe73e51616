package topology

import (
	"cmp"
	"net/netip"
)

// NewNetwork declares a network. It panics if the subnet is no prefix.
func NewNetwork(name, subnet string) Network {
	return Network{Name: name, Subnet: netip.MustParsePrefix(subnet)}
}

// At is a link to the network. It panics if the address is none.
func (n Network) At(address string) Link {
	return Link{Network: n.Name, Address: netip.MustParseAddr(address)}
}

// Last is a link to the network, an IPv4 one, by the last byte of the address. It panics if no
// address of the network ends with that.
func (n Network) Last(last byte) Link {
	address := n.Subnet.Addr().As4()
	address[3] = last
	l := Link{Network: n.Name, Address: netip.AddrFrom4(address)}
	if !n.Subnet.Contains(l.Address) {
		panic("network " + n.Name + ": " + l.Address.String() + " is not in " + n.Subnet.String())
	}
	return l
}

// Node is a node on the network, by the last byte of its address.
func (n Network) Node(name string, last byte) Node {
	return Node{Name: name, Links: []Link{n.Last(last)}}
}

// Host is a host on the network, by the last byte of its address.
func (n Network) Host(name string, last byte) Host {
	return Host{Name: name, Links: []Link{n.Last(last)}}
}

// The nodes of a Rack.
const (
	Master  = "master"
	Worker1 = "worker1"
	Worker2 = "worker2"
)

// Rack is what the labs of most incidents have in common. They differ in the second byte of their addresses.
type Rack struct {
	Nodes, Uplink  Network      // 10.N.4.0/24, and 10.N.5.0/24 beyond the routers
	Pods, Services netip.Prefix // 10.N.64.0/20, and 10.N.128.0/24 for addresses of LoadBalancers
}

// NewRack is the rack with this second byte.
func NewRack(second byte) Rack {
	at := func(third byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, third, 0}), bits)
	}
	return Rack{
		Nodes: Network{Name: "nodes", Subnet: at(4, 24)}, Uplink: Network{Name: "uplink", Subnet: at(5, 24)},
		Pods: at(64, 20), Services: at(128, 24),
	}
}

// Three is a lab of Master, Worker1 and Worker2, and of the host "outside" on the uplink. Behind adds the routers.
// routed are the prefixes besides the pods' to which they have routes (Topology.Routed).
func (r Rack) Three(name string, routed ...netip.Prefix) Topology {
	t := r.lab(name, r.Nodes.Node(Master, 11), r.Nodes.Node(Worker1, 21), r.Nodes.Node(Worker2, 22))
	t.Networks, t.Routed, t.Hosts = append(t.Networks, r.Uplink), routed, []Host{r.Uplink.Host("outside", 10)}
	return t
}

// Two is a lab of Master and the node "worker". The ToR has static routes to the pods of both.
func (r Rack) Two(name string) Topology {
	return r.lab(name, r.Nodes.Node(Master, 11), r.Nodes.Node("worker", 12)).Behind(Static(OneToR(r.Nodes)))
}

func (r Rack) lab(name string, nodes ...Node) Topology {
	return Topology{Name: name, Networks: []Network{r.Nodes}, Clusters: []Cluster{{PodCIDR: r.Pods, NodeMask: 24, Nodes: nodes}}}
}

// The AS numbers of labs: of the ToRs, and of a cluster.
const (
	TorASN     uint32 = 64524
	ClusterASN uint32 = 64513
)

// TwoToRs are the routers of most BGP incidents: tor1 with the address .251 on each network, and
// tor2 with .252. Each has a session with each node that speaks BGP.
func TwoToRs(nodes, uplink Network) []Router {
	routers := []Router{tor("tor1", 251, nodes, uplink), tor("tor2", 252, nodes, uplink)}
	for i := range routers {
		routers[i].ID = routers[i].Links[1].Address
	}
	return routers
}

// OneToR is the router "tor", with the address .254 on the nodes' network and on others.
func OneToR(nodes Network, others ...Network) []Router {
	return []Router{tor("tor", 254, append([]Network{nodes}, others...)...)}
}

func tor(name string, last byte, networks ...Network) Router {
	r := Router{
		Name: name, ASN: TorASN, ID: networks[0].Last(last).Address,
		Peers: []Peers{{Network: networks[0].Name, ASN: ClusterASN}},
	}
	for _, n := range networks {
		r.Links = append(r.Links, n.Last(last))
	}
	return r
}

// GracefulRestart has routers keep the routes of a peer that restarts (Peers.GracefulRestart).
func GracefulRestart(routers []Router) []Router {
	for _, r := range routers {
		for i := range r.Peers {
			r.Peers[i].GracefulRestart = true
		}
	}
	return routers
}

// WithBFD makes FRR of routers, which has BFD with their peers (Peers.BFD).
func WithBFD(routers []Router, bfd BFD) []Router {
	for i, r := range routers {
		routers[i].Kind = FRR
		for j := range r.Peers {
			r.Peers[j].BFD = bfd
		}
	}
	return routers
}

// Static has routers accept no BGP sessions: they have the routes that are added to them.
func Static(routers []Router) []Router {
	for i := range routers {
		routers[i].Peers = nil
	}
	return routers
}

// Behind completes the declaration of a lab behind these routers, which hold the default route
// of its nodes and hosts. The first node of each cluster is its control plane. Where a cluster
// does not say otherwise it is "k8s" with ClusterASN, and its Services are in 10.96.0.0/16.
func (t Topology) Behind(routers []Router) Topology {
	t.Routers = routers
	var via []string
	for _, r := range routers {
		via = append(via, r.Name)
	}
	for i := range t.Clusters {
		c := &t.Clusters[i]
		c.Name, c.ASN = cmp.Or(c.Name, "k8s"), cmp.Or(c.ASN, ClusterASN)
		if !c.ServiceCIDR.IsValid() {
			c.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
		}
		for j := range c.Nodes {
			c.Nodes[j].Role, c.Nodes[j].Via = Worker, via
		}
		c.Nodes[0].Role = ControlPlane
	}
	for i := range t.Hosts {
		t.Hosts[i].Via = via
	}
	return t
}

// BGPPeer is a router at the address at which nodes have sessions with it.
type BGPPeer struct {
	Router          string
	Address         netip.Addr
	ASN, ClusterASN uint32
	BFD             BFD
}

// BGPPeers are the routers that accept sessions, once for each of their Peers.
func (t Topology) BGPPeers() []BGPPeer {
	var all []BGPPeer
	for _, r := range t.Routers {
		for _, p := range r.Peers {
			address, _ := t.AddressOn(r.Name, p.Network)
			all = append(all, BGPPeer{Router: r.Name, Address: address, ASN: r.ASN, ClusterASN: p.ASN, BFD: p.BFD})
		}
	}
	return all
}
