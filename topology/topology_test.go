package topology

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

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
	return Topology{
		Name: "node-drain", Networks: []Network{rack, outside}, Hosts: []Host{outside.Host("client", 10)},
		Clusters: []Cluster{{
			Name: "drain", PodCIDR: prefix("10.5.112.0/21"), NodeMask: 24,
			Nodes: []Node{rack.Node("master1", 32), rack.Node("master3", 31), rack.Node("master2", 21), rack.Node("node1", 23)},
		}},
	}.Behind(TwoToRs(rack, outside))
}

// Each of these changes of a valid lab makes one problem.
func TestValidate(t *testing.T) {
	must.NoError(t, drain().Validate())
	host, node := func(t *Topology) *Host { return &t.Hosts[0] }, func(t *Topology) *Node { return &t.Clusters[0].Nodes[3] }
	for _, test := range []struct {
		want   string
		change func(*Topology)
	}{
		{`lab: "Node_Drain" is no name: expected lower-case letters, digits and dashes, 32 at most, with`, func(t *Topology) { t.Name = "Node_Drain" }},
		{`lab: "a23456789-123456789-123456789-123" is no name`, func(t *Topology) { t.Name = "a23456789-123456789-123456789-123" }},
		{`lab: "" is no name`, func(t *Topology) { t.Name = "" }},
		{`network "a-very-long-name": "a-very-long-name" is no name: expected lower-case letters, digits and dashes, 15 at most`, func(t *Topology) {
			t.Networks = append(t.Networks, NewNetwork("a-very-long-name", "10.9.0.0/24"))
		}},
		{`network "rack": name rack is also the one of network "rack"`, func(t *Topology) { t.Networks = append(t.Networks, NewNetwork("rack", "10.9.0.0/24")) }},
		{`host "tor1": name tor1 is also the one of router "tor1"`, func(t *Topology) { host(t).Name = "tor1" }},
		{`router "tor1": address 10.4.94.32 is also the one of node "master1"`, func(t *Topology) { t.Routers[0].Links[0].Address = addr("10.4.94.32") }},
		{`node "node1": 10.4.94.0 is no address of a member in 10.4.94.0/24 of network "rack"`, func(t *Topology) { node(t).Links[0].Address = addr("10.4.94.0") }},
		{`node "node1": 10.4.94.1 is no address of a member`, func(t *Topology) { node(t).Links[0].Address = addr("10.4.94.1") }},
		{`node "node1": 10.4.94.255 is no address of a member`, func(t *Topology) { node(t).Links[0].Address = addr("10.4.94.255") }},
		{`node "node1": 10.4.95.7 is no address of a member`, func(t *Topology) { node(t).Links[0].Address = addr("10.4.95.7") }},
		{`node "node1": 2001:db8::1 is no address of a member`, func(t *Topology) { node(t).Links[0].Address = addr("2001:db8::1") }},
		{`host "client": a second link to network "outside"`, func(t *Topology) { host(t).Links = append(host(t).Links, Link{"outside", addr("10.4.36.11")}) }},
		{`router "spine": no links: expected at least one`, func(t *Topology) { t.Routers = append(t.Routers, Router{Name: "spine", ASN: 1, ID: addr("1.1.1.1")}) }},
		{`the pods of cluster "drain": 10.4.94.0/23 overlaps 10.4.94.0/24 of network "rack"`, func(t *Topology) {
			t.Clusters[0].PodCIDR, t.Clusters[0].NodeMask = prefix("10.4.94.0/23"), 26
		}},
		{`a routed range: 10.4.94.0/28 overlaps 10.4.94.0/24 of network "rack"`, func(t *Topology) { t.Routed = []netip.Prefix{prefix("10.4.94.0/28")} }},
		{`a routed range: 224.1.0.0/16 is loopback, multicast or reserved`, func(t *Topology) { t.Routed = []netip.Prefix{prefix("224.1.0.0/16")} }},
		{`a routed range: 10.9.1.1/24 is no IPv4 prefix without host bits`, func(t *Topology) { t.Routed = []netip.Prefix{prefix("10.9.1.1/24")} }},
		{`network "v6": 2001:db8::/28 is no IPv4 prefix`, func(t *Topology) {
			t.Networks = append(t.Networks, Network{Name: "v6", Subnet: prefix("2001:db8::/28")})
		}},
		{`network "none": invalid Prefix is no IPv4 prefix`, func(t *Topology) { t.Networks = append(t.Networks, Network{Name: "none"}) }},
		{`network "tiny": 10.9.2.0/31 has no room`, func(t *Topology) { t.Networks = append(t.Networks, NewNetwork("tiny", "10.9.2.0/31")) }},
		{`cluster "drain": AS 0 is reserved`, func(t *Topology) { t.Clusters[0].ASN = 0 }},
		{`router "tor1": AS 0 is reserved`, func(t *Topology) { t.Routers[0].Peers[0].ASN = 0 }},
		{`router "tor2": BGP identifier 10.4.36.251 is also the one of router "tor1"`, func(t *Topology) { t.Routers[1].ID = t.Routers[0].ID }},
		{`router "tor1": invalid IP is no BGP identifier`, func(t *Topology) { t.Routers[0].ID = netip.Addr{} }},
		{`router "tor1": peers on network "rck", to which it has no link`, func(t *Topology) { t.Routers[0].Peers[0].Network = "rck" }},
		{`router "tor1": AS 64513 on network "rack" is listed twice`, func(t *Topology) { t.Routers[0].Peers = append(t.Routers[0].Peers, t.Routers[0].Peers[0]) }},
		{`router "tor2": no kind of router "bird2"; nearest is "bird"`, func(t *Topology) { t.Routers[1].Kind = "bird2" }},
		{`node "node1": no router "tor"; nearest is "tor1"`, func(t *Topology) { node(t).Via = []string{"tor"} }},
		{`host "client": no default gateway`, func(t *Topology) { host(t).Via = nil }},
		{`host "client": it shares no network with router "tor2", its gateway`, func(t *Topology) { t.Routers[1].Links = t.Routers[1].Links[:1] }},
		{`node "node1": role "control-plane": expected "worker"`, func(t *Topology) { node(t).Role = ControlPlane }},
		{`node "master1": role "worker": expected "control-plane"`, func(t *Topology) { t.Clusters[0].Nodes[0].Role = Worker }},
		{`node "node1": no guest kernel "6.1.0-37"; nearest is "6.1"`, func(t *Topology) { node(t).Kernel = "6.1.0-37" }},
		{`node "master1": a control plane runs on the machine's kernel`, func(t *Topology) { t.Clusters[0].Nodes[0].Kernel = "6.1" }},
		{`node "node1": a guest speaks IPv4 alone`, func(t *Topology) { t.Dual, node(t).Kernel = true, "6.1" }},
		{`cluster "drain": no nodes`, func(t *Topology) { t.Clusters[0].Nodes = nil }},
		{`cluster "drain": /22 does not split 10.5.112.0/21 for 4 nodes: expected /23 to /30`, func(t *Topology) { t.Clusters[0].NodeMask = 22 }},
		{`cluster "drain": /31 does not split`, func(t *Topology) { t.Clusters[0].NodeMask = 31 }},
		{`cluster "drain": /28 does not split 100.64.0.0/10 for 4 nodes: expected /12 to /26`, func(t *Topology) {
			t.Clusters[0].PodCIDR, t.Clusters[0].NodeMask = prefix("100.64.0.0/10"), 28
		}},
	} {
		t.Run(test.want, func(t *testing.T) {
			lab := drain()
			test.change(&lab)
			err := lab.Validate()
			invalid, ok := errors.AsType[*InvalidError](err)
			if !ok || len(invalid.Problems) != 1 || !strings.HasPrefix(invalid.Problems[0], test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// A second cluster may have the first one's Services, and a host the name of a network.
func TestValidateShared(t *testing.T) {
	lab := drain()
	second := lab.Clusters[0]
	second.Name, second.PodCIDR = "second", prefix("10.6.0.0/21")
	second.Nodes = []Node{{Name: "other", Role: ControlPlane, Via: []string{"tor1"}, Links: []Link{{"rack", addr("10.4.94.50")}}}}
	lab.Clusters, lab.Hosts[0].Name = append(lab.Clusters, second), "rack"
	must.NoError(t, lab.Validate())
	lab.Clusters[1].Name, lab.Hosts[0].Links[0].Network = "drain", "elsewhere"
	must.Fail(t, lab.Validate(), "topology \"node-drain\" cannot be built, 4 problems:\n  "+
		`cluster "drain": name drain is also the one of cluster "drain"`+"\n  "+`host "rack": no network "elsewhere"; there are ["rack" "outside"]`)
}

func TestLookups(t *testing.T) {
	lab := drain()
	if n, ok := lab.Network("rack"); !ok || n.Bridge() != addr("10.4.94.1") {
		t.Errorf("Network(rack) = %v, %v with bridge %v", n, ok, n.Bridge())
	}
	m, ok := lab.Member("master2")
	if !ok || m.Kind != KindNode {
		t.Fatalf("Member(master2) = %+v, %v", m, ok)
	}
	must.Equal(t, "NextHops(master2)", []netip.Addr{addr("10.4.94.251"), addr("10.4.94.252")}, lab.NextHops(m))
	if a, ok := lab.AddressOn("tor2", "outside"); !ok || a != addr("10.4.36.252") {
		t.Errorf("AddressOn(tor2, outside) = %v, %v", a, ok)
	}
	_, none := lab.Network("none")
	_, client := lab.AddressOn("client", "rack")
	_, nobody := lab.AddressOn("nobody", "rack")
	must.Equal(t, "found network none, client and nobody on the rack", [3]bool{}, [3]bool{none, client, nobody})
	r, _ := lab.Member("tor1")
	if l, i := r.LinkOn("outside"); i != 1 || l.Address != addr("10.4.36.251") {
		t.Errorf("tor1.LinkOn(outside) = %v, %d", l, i)
	}
	on := each.Of(lab.MembersOn("outside"), func(m Member) string { return m.Name })
	must.Equal(t, "MembersOn(outside)", []string{"tor1", "tor2", "client"}, on)
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
