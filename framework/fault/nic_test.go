package fault

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology"
)

// twoNodes is a lab of two nodes and a router.
var twoNodes = topology.Topology{
	Name:     "nics",
	Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("172.29.0.0/24")}},
	Clusters: []topology.Cluster{{
		Name: "k8s", PodCIDR: netip.MustParsePrefix("10.65.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			{Name: "node1", Role: topology.ControlPlane, Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("172.29.0.11")}}},
			{Name: "node2", Role: topology.Worker, Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("172.29.0.12")}}},
		},
	}},
	Routers: []topology.Router{{Name: "tor1", Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("172.29.0.2")}}}},
}

func TestNICCheck(t *testing.T) {
	for _, c := range []struct {
		name, node, nic, address string
		want                     string // in the error; empty: none
		wraps                    error
	}{
		{name: "the incident's", node: "node2", nic: "eth1", address: "192.168.77.5/24"},
		{name: "another name", node: "node2", nic: "ens224", address: "192.168.77.5/24"},
		{name: "a name that Calico skips", node: "node2", nic: "veth0", address: "192.168.77.5/24", want: `"veth0": Calico's autodetection skips every interface that matches ^veth.*`, wraps: ErrSkipped},
		{name: "a name that begins with lo", node: "node2", nic: "lom1", address: "192.168.77.5/24", want: "matches ^lo", wraps: ErrSkipped},
		{name: "kube-ipvs", node: "node2", nic: "kube-ipvs0", address: "192.168.77.5/24", want: "take eth1", wraps: ErrSkipped},
		{name: "a name that is taken", node: "node2", nic: "eth0", address: "192.168.77.5/24", want: "has an interface of that name: take eth1"},
		{name: "no name", node: "node2", address: "192.168.77.5/24", want: "want 1 to 15 characters"},
		{name: "too long a name", node: "node2", nic: "enp0s31f6np1v100", address: "192.168.77.5/24", want: "want 1 to 15 characters"},
		{name: "no such node", node: "node7", nic: "eth1", address: "192.168.77.5/24", want: `no node "node7"`},
		{name: "a router", node: "tor1", nic: "eth1", address: "192.168.77.5/24", want: `no node "tor1"`},
		{name: "no address", node: "node2", nic: "eth1", want: "want an IPv4 unicast address"},
		{name: "link-local, which Calico ignores", node: "node2", nic: "eth1", address: "169.254.1.5/24", want: "want an IPv4 unicast address"},
		{name: "IPv6", node: "node2", nic: "eth1", address: "fd00::5/64", want: "want an IPv4 unicast address"},
		{name: "the network's address", node: "node2", nic: "eth1", address: "192.168.77.0/24", want: "no address of a host"},
		{name: "in the nodes' network", node: "node2", nic: "eth1", address: "172.29.0.77/24", want: "overlaps network nodes (172.29.0.0/24)", wraps: ErrReachable},
		{name: "a subnet that holds the nodes' network", node: "node2", nic: "eth1", address: "172.29.77.1/16", want: "overlaps network nodes", wraps: ErrReachable},
		{name: "in the pods' range", node: "node2", nic: "eth1", address: "10.65.3.4/24", want: "the pods' range (10.65.0.0/16)", wraps: ErrReachable},
		{name: "in the Services' range", node: "node2", nic: "eth1", address: "10.96.3.4/24", want: "the Services' range", wraps: ErrReachable},
		{name: "another node's address", node: "node2", nic: "eth1", address: "172.29.0.11/24", want: "node node1 has it", wraps: ErrDuplicate},
		{name: "the node's own address", node: "node2", nic: "eth1", address: "172.29.0.12/24", want: "on another interface", wraps: ErrReachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := NIC{Node: c.node, Name: c.nic}
			if c.address != "" {
				n.Address = netip.MustParsePrefix(c.address)
			}
			err := n.Check(twoNodes)
			if c.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one sentence with %q", err, c.want)
			}
			if c.wraps != nil && !errors.Is(err, c.wraps) {
				t.Errorf("%v is not %v", err, c.wraps)
			}
		})
	}
}

// The new interface must be the last in the order in which the kernel lists
// them, whichever kernel it is.
func TestNewestIndex(t *testing.T) {
	for _, c := range []struct {
		name    string
		present []int
		want    int
	}{
		{"a machine", []int{1, 2}, 3},
		{"a container", []int{1, 2347}, 2348},
		{"past a multiple of 256", []int{1, 511}, 512}, // the remainder cannot be beaten
		{"with a higher remainder below", []int{1, 200, 513}, 713},
	} {
		if got := newestIndex(c.present); got != c.want {
			t.Errorf("%s: index %d beside %v, want %d", c.name, got, c.present, c.want)
		}
	}
}
