package topology

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// drain has the shape of node-drain's lab: four nodes in a rack behind two
// ToR routers, and a host on the routers' far side.
//
//	master1 master2 master3 node1
//	   |       |       |      |
//	---+-------+-------+------+---  rack 10.4.94.0/24
//	       |               |
//	     tor1            tor2
//	       |               |
//	-------+-------+-------+------  outside 10.4.36.0/24
//	            client
func drain() Topology {
	rack, outside := NewNetwork("rack", "10.4.94.0/24"), NewNetwork("outside", "10.4.36.0/24")
	router := func(name string, last byte) Router {
		outer := outside.Last(last)
		return Router{
			Name: name, ASN: TorASN, ID: outer.Address, Links: []Link{rack.Last(last), outer},
			Peers: []Peers{{Network: "rack", ASN: ClusterASN}},
		}
	}
	return Topology{
		Name: "node-drain", Networks: []Network{rack, outside}, Hosts: []Host{outside.Host("client", 10)},
		Clusters: []Cluster{{
			Name: "drain", PodCIDR: prefix("10.5.112.0/21"), NodeMask: 24,
			Nodes: []Node{rack.Node("master1", 32), rack.Node("master3", 31), rack.Node("master2", 21), rack.Node("node1", 23)},
		}},
	}.Behind([]Router{router("tor1", 239), router("tor2", 238)})
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Topology)
		want   []string
	}{
		{"valid", func(*Topology) {}, nil},
		{"empty lab", func(t *Topology) { *t = Topology{} }, []string{`name: no name`}},
		{"lab's name", func(t *Topology) { t.Name = "Node_Drain" }, []string{
			`name: "Node_Drain" is not a name: expected lower-case letters, digits and dashes, with a letter or digit at both ends`,
		}},
		{"lab's name too long", func(t *Topology) { t.Name = "a23456789-123456789-123456789-123" }, []string{
			`name: "a23456789-123456789-123456789-123" has 33 characters: expected 32 at most`,
		}},
		{"network's name does not fit an interface", func(t *Topology) {
			t.Networks = append(t.Networks, Network{Name: "a-very-long-name", Subnet: prefix("10.9.0.0/24")})
		}, []string{
			`networks[2].name: "a-very-long-name" has 16 characters: expected 15 at most`,
		}},
		{"duplicate network", func(t *Topology) {
			t.Networks = append(t.Networks, Network{Name: "rack", Subnet: prefix("10.9.0.0/24")})
		}, []string{`networks[2].name: "rack" is also the name of networks[0]`}},
		{"duplicate names across kinds", func(t *Topology) {
			t.Hosts[0].Name = "tor1"
			t.Clusters[0].Nodes[3].Name = "tor2"
		}, []string{
			`routers[1].name: "tor2" is also the name of clusters[0].nodes[3]`,
			`hosts[0].name: "tor1" is also the name of routers[0]`,
		}},
		{"a router may be named as a network", func(t *Topology) { t.Hosts[0].Name = "rack" }, nil},
		{"duplicate cluster", func(t *Topology) {
			c := t.Clusters[0]
			c.PodCIDR = prefix("10.6.0.0/21")
			c.Nodes = []Node{{
				Name: "other", Role: ControlPlane, Via: []string{"tor1"},
				Links: []Link{{"rack", addr("10.4.94.50")}},
			}}
			t.Clusters = append(t.Clusters, c)
		}, []string{`clusters[1].name: "drain" is also the name of clusters[0]`}},
		{"duplicate addresses", func(t *Topology) {
			t.Clusters[0].Nodes[1].Links[0].Address = addr("10.4.94.32")
			t.Routers[1].Links[0].Address = addr("10.4.94.239")
		}, []string{
			`clusters[0].nodes[1].links[0].address: 10.4.94.32 is also the address of clusters[0].nodes[0].links[0]`,
			`routers[1].links[0].address: 10.4.94.239 is also the address of routers[0].links[0]`,
		}},
		{"addresses that no member can have", func(t *Topology) {
			for i, a := range []string{"10.4.94.0", "10.4.94.1", "10.4.94.255", "10.4.95.7"} {
				t.Clusters[0].Nodes[i].Links[0].Address = addr(a)
			}
			t.Hosts[0].Links[0].Address = netip.Addr{}
			t.Routers[0].Links[1].Address = addr("2001:db8::1")
		}, []string{
			`clusters[0].nodes[0].links[0].address: 10.4.94.0 is the network address of 10.4.94.0/24`,
			`clusters[0].nodes[1].links[0].address: 10.4.94.1 is the first address of 10.4.94.0/24, which belongs to the bridge`,
			`clusters[0].nodes[2].links[0].address: 10.4.94.255 is the broadcast address of 10.4.94.0/24`,
			`clusters[0].nodes[3].links[0].address: 10.4.95.7 is not in 10.4.94.0/24, the subnet of network "rack"`,
			`routers[0].links[1].address: 2001:db8::1 is not an IPv4 address`,
			`hosts[0].links[0].address: invalid IP is not an IPv4 address`,
		}},
		{"overlaps", func(t *Topology) {
			t.Networks[1].Subnet = prefix("10.4.0.0/16")
			t.Clusters[0].PodCIDR = prefix("10.4.96.0/21")
			t.Clusters[0].ServiceCIDR = prefix("10.4.94.0/24")
		}, []string{
			`networks[1].subnet: 10.4.0.0/16 overlaps 10.4.94.0/24 of networks[0].subnet`,
			`clusters[0].podCIDR: 10.4.96.0/21 overlaps 10.4.0.0/16 of networks[1].subnet`,
			`clusters[0].serviceCIDR: 10.4.94.0/24 overlaps 10.4.94.0/24 of networks[0].subnet`,
			`clusters[0].serviceCIDR: 10.4.94.0/24 overlaps 10.4.0.0/16 of networks[1].subnet`,
		}},
		{"two clusters", func(t *Topology) {
			c := t.Clusters[0] // the same ServiceCIDR, which is no problem
			c.Name = "second"
			c.Nodes = []Node{{
				Name: "other", Role: ControlPlane, Via: []string{"tor1"},
				Links: []Link{{"rack", addr("10.4.94.50")}},
			}}
			t.Clusters = append(t.Clusters, c)
		}, []string{`clusters[1].podCIDR: 10.5.112.0/21 overlaps 10.5.112.0/21 of clusters[0].podCIDR`}},
		{"prefixes that are none", func(t *Topology) {
			t.Networks = append(t.Networks, Network{Name: "v6", Subnet: prefix("2001:db8::/64")}, Network{Name: "none"},
				Network{Name: "bits", Subnet: prefix("10.9.1.1/24")}, Network{Name: "tiny", Subnet: prefix("10.9.2.0/31")},
				Network{Name: "loopback", Subnet: prefix("127.1.0.0/16")})
			t.Clusters[0].PodCIDR = prefix("2001:db8:1::/64")
		}, []string{
			`networks[2].subnet: 2001:db8::/64 is not an IPv4 prefix`,
			`networks[3].subnet: no prefix: expected an IPv4 prefix such as 10.4.94.0/24`,
			`networks[4].subnet: 10.9.1.1/24 has host bits: expected 10.9.1.0/24`,
			`networks[5].subnet: 10.9.2.0/31 has no room for the bridge and a member: expected /30 or shorter`,
			`networks[6].subnet: 127.1.0.0/16 overlaps 127.0.0.0/8 (loopback)`,
			`clusters[0].podCIDR: 2001:db8:1::/64 is not an IPv4 prefix`,
		}},
		{"unknown link ends", func(t *Topology) {
			t.Clusters[0].Nodes[2].Links[0].Network = "rack-net"
			t.Hosts[0].Links[0].Network = "elsewhere"
			t.Routers[0].Peers[0].Network = "rck"
		}, []string{
			`clusters[0].nodes[2].links[0].network: no network "rack-net"; nearest is "rack"`,
			`clusters[0].nodes[2].via[0]: router "tor1" shares no network with this member`,
			`clusters[0].nodes[2].via[1]: router "tor2" shares no network with this member`,
			`routers[0].peers[0].network: no network "rck"; nearest is "rack"`,
			`hosts[0].links[0].network: no network "elsewhere"; there are ["rack" "outside"]`,
			`hosts[0].via[0]: router "tor1" shares no network with this member`,
			`hosts[0].via[1]: router "tor2" shares no network with this member`,
		}},
		{"AS 0", func(t *Topology) {
			t.Clusters[0].ASN = 0
			t.Routers[0].ASN = 0
			t.Routers[1].Peers[0].ASN = 0
		}, []string{
			`clusters[0].asn: AS 0 is reserved (RFC 7607)`,
			`routers[0].asn: AS 0 is reserved (RFC 7607)`,
			`routers[1].peers[0].asn: AS 0 is reserved (RFC 7607)`,
		}},
		{"BGP identifiers", func(t *Topology) {
			t.Routers[0].ID = netip.Addr{}
			t.Routers = append(t.Routers, t.Routers[1])
			t.Routers[2].Name = "tor3"
			t.Routers[2].Links = []Link{{"rack", addr("10.4.94.240")}}
			t.Routers[2].Peers = []Peers{{Network: "rack", ASN: 1}, {Network: "rack", ASN: 1, GracefulRestart: true}, {Network: "outside", ASN: 2}}
		}, []string{
			`routers[0].id: invalid IP is not a BGP identifier: expected an IPv4 address, by convention one of the router's`,
			`routers[2].id: 10.4.36.238 is also the identifier of routers[1]`,
			`routers[2].peers[1]: AS 1 on network "rack" is listed twice`,
			`routers[2].peers[2].network: router "tor3" has no link to network "outside"`,
		}},
		{"kinds of routers", func(t *Topology) {
			t.Routers[0].Kind = BIRD
			t.Routers[1].Kind = "bird2"
		}, []string{`routers[1].kind: no kind of router "bird2"; nearest is "bird"`}},
		{"via", func(t *Topology) {
			t.Clusters[0].Nodes[0].Via = []string{"tor"}
			t.Clusters[0].Nodes[1].Via = []string{"tor1", "tor1"}
			t.Hosts[0].Via = nil
			t.Routers[1].Links = t.Routers[1].Links[1:]
			t.Routers[1].Peers = nil
			t.Clusters[0].Nodes[2].Via = []string{"tor1"}
		}, []string{
			`clusters[0].nodes[0].via[0]: no router "tor"; nearest is "tor1"`,
			`clusters[0].nodes[1].via[1]: router "tor1" is listed twice`,
			`clusters[0].nodes[3].via[1]: router "tor2" shares no network with this member`,
			`hosts[0].via: no routers: expected at least one, the default gateway`,
		}},
		{"member without links", func(t *Topology) { t.Routers = append(t.Routers, Router{Name: "spine", ASN: 1, ID: addr("1.1.1.1")}) },
			[]string{`routers[2].links: no links: expected at least one`}},
		{"two links to one network", func(t *Topology) {
			t.Hosts[0].Links = append(t.Hosts[0].Links, Link{"outside", addr("10.4.36.11")})
		}, []string{`hosts[0].links[1].network: a second link to network "outside"`}},
		{"roles", func(t *Topology) {
			t.Clusters[0].Nodes[0].Role = Worker
			t.Clusters[0].Nodes[1].Role = ControlPlane
			t.Clusters[0].Nodes[2].Role = "etcd"
		}, []string{
			`clusters[0].nodes[0].role: the first node is the cluster's control plane: expected "control-plane", not "worker"`,
			`clusters[0].nodes[1].role: a cluster has one control plane, its first node: expected "worker"`,
			`clusters[0].nodes[2].role: no role "etcd": expected "control-plane" or "worker"`,
		}},
		{"kernel", func(t *Topology) {
			t.Clusters[0].Nodes[0].Kernel = "6.1"
			t.Clusters[0].Nodes[1].Kernel = "6.12"
			t.Clusters[0].Nodes[2].Kernel = "6.1.0-37"
			t.Clusters[0].Nodes[3].Kernel = "latest"
		}, []string{
			`clusters[0].nodes[0].kernel: a control plane runs on the machine's kernel: expected none, not "6.1"`,
			`clusters[0].nodes[2].kernel: no guest kernel "6.1.0-37"; nearest is "6.1"`,
			`clusters[0].nodes[3].kernel: no guest kernel "latest"; there are ["6.1" "6.12"]`,
		}},
		{"cluster without nodes", func(t *Topology) { t.Clusters[0].Nodes = nil },
			[]string{`clusters[0].nodes: no nodes: expected at least a control plane`}},
		{"too few ranges", func(t *Topology) { t.Clusters[0].NodeMask = 22 },
			[]string{`clusters[0].nodeMask: 10.5.112.0/21 has 2 ranges of /22 for 4 nodes`}},
		{"node mask shorter than the range's", func(t *Topology) { t.Clusters[0].NodeMask = 20 },
			[]string{`clusters[0].nodeMask: /20 does not split 10.5.112.0/21: expected /21 to /30`}},
		{"node mask too long", func(t *Topology) { t.Clusters[0].NodeMask = 31 },
			[]string{`clusters[0].nodeMask: /31 does not split 10.5.112.0/21: expected /21 to /30`}},
		{"node mask too far", func(t *Topology) {
			t.Clusters[0].PodCIDR = prefix("100.64.0.0/10")
			t.Clusters[0].NodeMask = 28
		}, []string{`clusters[0].nodeMask: /28 in 100.64.0.0/10: kubeadm allows 16 bits of difference at most; expected /26 or shorter`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lab := drain()
			tt.change(&lab)
			err := lab.Validate()
			var got []string
			if err != nil {
				var invalid *InvalidError
				if !errors.As(err, &invalid) {
					t.Fatalf("Validate() = %T, want *InvalidError", err)
				}
				for _, p := range invalid.Problems {
					got = append(got, p.String())
				}
			}
			must.Equal(t, "problems", tt.want, got)
		})
	}
}

func TestInvalidError(t *testing.T) {
	one := &InvalidError{Topology: "lab", Problems: []Problem{{Path: "clusters[0].asn", Says: "AS 0"}}}
	if got, want := one.Error(), `topology "lab" cannot be built: clusters[0].asn: AS 0`; got != want {
		t.Errorf("one problem: %q, want %q", got, want)
	}
	two := &InvalidError{Problems: []Problem{{Path: "name", Says: "no name"}, {Says: "x"}}}
	if got, want := two.Error(), "topology cannot be built, 2 problems:\n  name: no name\n  x"; got != want {
		t.Errorf("two problems: %q, want %q", got, want)
	}
}

func TestLookups(t *testing.T) {
	lab := drain()
	if n, ok := lab.Network("rack"); !ok || n.Bridge() != addr("10.4.94.1") {
		t.Errorf("Network(rack) = %v, %v with bridge %v", n, ok, n.Bridge())
	}
	if _, ok := lab.Network("none"); ok {
		t.Error("Network(none) found")
	}
	m, ok := lab.Member("master2")
	if !ok || m.Kind != KindNode {
		t.Fatalf("Member(master2) = %+v, %v", m, ok)
	}
	want := []netip.Addr{addr("10.4.94.239"), addr("10.4.94.238")}
	must.Equal(t, "NextHops(master2)", want, lab.NextHops(m), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	if a, ok := lab.AddressOn("tor2", "outside"); !ok || a != addr("10.4.36.238") {
		t.Errorf("AddressOn(tor2, outside) = %v, %v", a, ok)
	}
	if _, ok := lab.AddressOn("client", "rack"); ok {
		t.Error("AddressOn(client, rack) found")
	}
	if _, ok := lab.AddressOn("nobody", "rack"); ok {
		t.Error("AddressOn(nobody, rack) found")
	}
	r, _ := lab.Member("tor1")
	if l, i := r.LinkOn("outside"); i != 1 || l.Address != addr("10.4.36.239") {
		t.Errorf("tor1.LinkOn(outside) = %v, %d", l, i)
	}
	on := each.Of(lab.MembersOn("outside"), func(m Member) string { return m.Name })
	if !slices.Equal(on, []string{"tor1", "tor2", "client"}) {
		t.Errorf("MembersOn(outside) = %v", on)
	}
}

func TestNextRange(t *testing.T) {
	for _, test := range []struct{ prefix, want string }{
		{"10.5.112.0/24", "10.5.113.0/24"},
		{"10.5.255.0/24", "10.6.0.0/24"},
		{"10.5.112.0/26", "10.5.112.64/26"},
		{"10.0.0.0/8", "11.0.0.0/8"},
	} {
		must.Equal(t, test.prefix, test.want, NextRange(netip.MustParsePrefix(test.prefix)).String())
	}
}
