package twincidr

import (
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

const (
	master = "master"
	// newcomer joins. Its name sorts before owner's, whose range is the lowest: the operator
	// lists CiliumNodes in order of name.
	newcomer = "new"
	owner    = "worker"
)

var (
	nodes   = []string{master, newcomer, owner}
	tors    = []string{"tor1", "tor2"}
	nodeNet = topology.NewNetwork("nodes", "10.69.4.0/24")
	uplink  = topology.NewNetwork("uplink", "10.69.5.0/24")
	podCIDR = netip.MustParsePrefix("10.69.128.0/17")
)

// The ranges of pods, in the order in which cilium-operator gives them out.
var (
	lowest = netip.MustParsePrefix("10.69.128.0/27")
	second = netip.MustParsePrefix("10.69.128.32/27")
	third  = netip.MustParsePrefix("10.69.128.64/27")
)

// others are the nodes of a large cluster that have a CiliumNode and no machine: what a starting
// operator does with each is the time in which it gives away a range that has an owner. Their names
// sort before owner's. Nothing is sent to their addresses, which are in elsewhere.
const others = 400

var elsewhere = netip.MustParsePrefix("10.69.64.0/20")

func members(lab topology.Topology) (order []string, address map[string]netip.Addr) {
	order, address = []string{owner, master, newcomer}, map[string]netip.Addr{}
	for _, name := range order {
		address[name], _ = lab.AddressOn(name, nodeNet.Name)
	}
	at := elsewhere.Addr()
	for i := range others {
		name := fmt.Sprintf("other-%03d", i)
		at = at.Next()
		order, address[name] = append(order, name), at
	}
	return order, address
}

// lab is the cluster that Record draws.
var lab = topology.Topology{
	Name: "twin-cidr", Networks: []topology.Network{nodeNet, uplink}, Hosts: []topology.Host{uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: lowest.Bits(),
		Nodes: []topology.Node{nodeNet.Node(master, 11), nodeNet.Node(newcomer, 22), nodeNet.Node(owner, 21)},
	}},
}.Behind(topology.TwoToRs(nodeNet, uplink))
