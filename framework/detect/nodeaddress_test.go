package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// meshed is a moment of a Calico cluster of three nodes in full mesh, that a test changes.
type meshed struct {
	snapshot.Snapshot
}

var (
	noon       = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	nodeNames  = []string{"node1", "node2", "node3"}
	newAddress = netip.MustParsePrefix("192.168.77.5/24")
)

func nodeIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 29, 0, byte(11 + i)}) }

// newMesh is healthy: every session is up, and first-found takes eth0.
func newMesh() *meshed {
	m := &meshed{snapshot.Snapshot{Time: noon}}
	m.Nodes.Read, m.CalicoAgents.Read, m.CiliumNodes.Read = true, true, true
	for i, name := range nodeNames {
		m.Nodes.Items = append(m.Nodes.Items, snapshot.Node{
			Name: name, InternalIPs: []netip.Addr{nodeIP(i)},
			Calico: snapshot.CalicoNode{Address: netip.PrefixFrom(nodeIP(i), 24)},
		})
		m.CalicoAgents.Items = append(m.CalicoAgents.Items, snapshot.CalicoAgent{
			Node: name, Pod: "kube-system/calico-node-" + name, IP: "autodetect", Method: "first-found", Poll: 2 * time.Second,
		})
		m.NodeNetworks = append(m.NodeNetworks, snapshot.NodeNetwork{
			Node: name,
			Interfaces: snapshot.List[snapshot.Interface]{Read: true, Items: []snapshot.Interface{
				{Name: "lo", Index: 1, Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
				{Name: "eth0", Index: 2347, Type: "veth", Addresses: []netip.Prefix{netip.PrefixFrom(nodeIP(i), 24)}},
				{Name: "cali0123", Index: 2350, Type: "veth"},
			}},
		})
		m.NodeTables = append(m.NodeTables, snapshot.NodeTable{Node: name, Routes: snapshot.List[snapshot.Route]{Read: true, Items: []snapshot.Route{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: snapshot.RouteUnicast, NextHops: []snapshot.NextHop{{Address: netip.MustParseAddr("172.29.0.2"), Interface: "eth0"}}},
			{Prefix: netip.MustParsePrefix("172.29.0.0/24"), Type: snapshot.RouteUnicast, Source: nodeIP(i), NextHops: []snapshot.NextHop{{Interface: "eth0"}}},
		}}})
	}
	m.render(nil)
	return m
}

// render gives every node's BIRD the neighbours that confd would, from the
// nodes' annotations. Sessions with a node of unreached are not established.
func (m *meshed) render(unreached []string) {
	for i := range m.NodeNetworks {
		n := &m.NodeNetworks[i]
		n.BIRD = snapshot.List[snapshot.BIRDProtocol]{Read: true, Items: []snapshot.BIRDProtocol{{Name: "kernel1", Proto: "Kernel"}}}
		for _, o := range m.Nodes.Items {
			if o.Name == n.Node || !o.Calico.Address.IsValid() {
				continue
			}
			p := snapshot.BIRDProtocol{
				Name:  "Mesh_" + strings.ReplaceAll(o.Calico.Address.Addr().String(), ".", "_"),
				Proto: "BGP", BGPState: snapshot.Established, Neighbor: o.Calico.Address.Addr(),
			}
			if slices.Contains(unreached, o.Name) || slices.Contains(unreached, n.Node) {
				p.BGPState = "Active"
			}
			n.BIRD.Items = append(n.BIRD.Items, p)
		}
	}
}

func (m *meshed) node(i int) *snapshot.Node { return &m.Nodes.Items[i] }

// plug adds eth1 to node2, with a time if it was seen to come.
func (m *meshed) plug(since time.Time) {
	items := &m.NodeNetworks[1].Interfaces.Items
	*items = append(*items, snapshot.Interface{Name: "eth1", Index: 2351, Type: "veth", Addresses: []netip.Prefix{newAddress}, Since: since})
}

func (m *meshed) methods(ip, method string) {
	for i := range m.CalicoAgents.Items {
		m.CalicoAgents.Items[i].IP, m.CalicoAgents.Items[i].Method = ip, method
	}
}

// move has Calico take the new address for node2.
func (m *meshed) move() {
	m.plug(noon)
	m.node(1).Calico.Address = newAddress
	m.render([]string{"node2"})
}

func TestNodeAddress(t *testing.T) {
	const plugged = "node2 from 172.29.0.12 to 192.168.77.5 of eth1, which "
	// added is the card, and a method by which Calico chooses; moved is its address without the card.
	added := func(ip, method string) func(*meshed) { return func(m *meshed) { m.plug(noon); m.methods(ip, method) } }
	moved := func(ip, method string) func(*meshed) {
		return func(m *meshed) { m.node(1).Calico.Address = newAddress; m.methods(ip, method) }
	}
	for _, c := range []struct {
		name string
		make func(m *meshed)
		// want is "kind state object", and then what the sentence contains.
		want [][]string
	}{
		{"all is well", func(*meshed) {}, nil},
		{"a card that first-found will take", added("autodetect", "first-found"), [][]string{{
			"next-address latent node2", plugged + "appeared after boot (at 12:00:00)",
			"every 2s or at its next start", "its method is first-found", "InternalIP is 172.29.0.12"}}},
		{"the same, of a cluster that is looked at once", func(m *meshed) { m.plug(time.Time{}) },
			[][]string{{"next-address latent node2", plugged + "was added after eth0 (index 2351, after 2347)"}}},
		{"the method is not said", added("autodetect", ""), [][]string{{"next-address latent node2", "its method is first-found"}}},
		{"kubernetes-internal-ip", added("autodetect", "kubernetes-internal-ip"), nil},
		{"can-reach a router", added("autodetect", "can-reach=172.29.0.2"), nil},
		{"can-reach by the default route", added("autodetect", "can-reach=8.8.8.8"), nil},
		{"can-reach into the new network", func(m *meshed) {
			added("autodetect", "can-reach=192.168.77.1")(m)
			route := snapshot.Route{Prefix: newAddress.Masked(), Type: snapshot.RouteUnicast, Source: newAddress.Addr(), NextHops: []snapshot.NextHop{{Interface: "eth1"}}}
			m.NodeTables[1].Routes.Items = append(m.NodeTables[1].Routes.Items, route)
		}, [][]string{{"next-address latent node2", "its method is can-reach=192.168.77.1"}}},
		{"can-reach a name", added("autodetect", "can-reach=tor1.example"), [][]string{{"added-interface latent node2",
			"an interface eth1 with 192.168.77.5, which appeared after boot", `in place of 172.29.0.12 is unknown`, `"tor1.example"`}}},
		{"the method is in a ConfigMap", func(m *meshed) {
			m.plug(noon)
			m.CalicoAgents.Items[1].Unknown = []string{"IP_AUTODETECTION_METHOD"}
		}, [][]string{{"added-interface latent node2", "the value of IP_AUTODETECTION_METHOD is not in the spec of pod kube-system/calico-node-node2"}}},
		{"interface", added("autodetect", "interface=eth0"), nil},
		{"an interface pattern that lets it in", added("autodetect", "interface=eth.*"),
			[][]string{{"next-address latent node2", "its method is interface=eth.*"}}},
		{"autodetection finds nothing", added("autodetect", "interface=bond0"), nil},
		{"no autodetection", added("", ""), nil},
		{"a card with another node's address", func(m *meshed) {
			m.plug(noon)
			m.NodeNetworks[1].Interfaces.Items[3].Addresses[0] = netip.PrefixFrom(nodeIP(2), 24)
		}, [][]string{{"next-address latent node2", "to 172.29.0.13 of eth1", "node3 has that address already, so calico-node will exit."}}},
		{"the incident", (*meshed).move, [][]string{{
			"wrong-address active node2",
			"For node2, Calico uses address 192.168.77.5 of eth1, which appeared after boot (at 12:00:00), according to the annotation projectcalico.org/IPv4Address; but the Node's InternalIP is 172.29.0.12: ",
			"BIRD on node1 has 192.168.77.5 (node2) in state Active", "and 1 more.",
		}}},
		{"before the other nodes have heard of it", func(m *meshed) {
			birds := slices.Clone(m.NodeNetworks)
			m.move()
			for i := range birds {
				m.NodeNetworks[i].BIRD = birds[i].BIRD
			}
		}, [][]string{{"wrong-address active node2", "BIRD on node1 has no neighbour 192.168.77.5 (node2)"}}},
		{"the method was changed, and Calico has not looked yet", func(m *meshed) { m.move(); m.methods("autodetect", "kubernetes-internal-ip") },
			[][]string{{"wrong-address active node2"}}},
		{"a wrong address that works", func(m *meshed) { m.move(); m.render(nil) },
			[][]string{{"wrong-address latent node2", "InternalIP is 172.29.0.12."}}},
		{"an address that was wanted", func(m *meshed) {
			m.move()
			m.render(nil)
			m.methods("autodetect", "cidr=192.168.77.0/24,172.29.0.0/24")
		}, nil},
		{"an address that no interface has any more", func(m *meshed) {
			moved("autodetect", "kubernetes-internal-ip")(m)
			m.render([]string{"node2"})
		}, [][]string{{"wrong-address active node2", "uses address 192.168.77.5 (on none of its interfaces), according to the annotation"}}},
		{"two nodes with one address", func(m *meshed) { m.node(1).Calico.Address = m.node(2).Calico.Address; m.methods("none", "") }, [][]string{
			{"duplicate-address active node2", "and the same one for node3"}, {"wrong-address active node2"},
			{"duplicate-address active node3", "and the same one for node2"},
		}},
		{"a session that is just coming up", func(m *meshed) { m.render([]string{"node2"}) }, [][]string{{"session-down settling node2",
			"for 0s, although", "pending: this becomes active after 10s: BIRD on node1 has 172.29.0.12 (node2) in state Active"}}},
		{"no BGP at all", func(m *meshed) {
			moved("none", "")(m)
			for i := range m.NodeNetworks {
				m.NodeNetworks[i].BIRD.Items = nil
			}
		}, nil},
		{"route reflectors are in no mesh", func(m *meshed) { m.node(0).Calico.RouteReflector = "244.0.0.1"; m.render([]string{"node1"}) }, nil},
		{"Cilium", func(m *meshed) {
			m.CiliumNodes.Items = []snapshot.CiliumNode{{Name: "node1", InternalIPs: []netip.Addr{nodeIP(0)}}, {Name: "node2", InternalIPs: []netip.Addr{newAddress.Addr(), netip.MustParseAddr("fd00::5")}}}
		}, [][]string{{"wrong-address latent node2", "For node2, Cilium uses address 192.168.77.5 (on none of its interfaces), according to its CiliumNode"}}},
		{"kube-router", func(m *meshed) { m.node(1).KubeRouterAddresses = []netip.Addr{newAddress.Addr()} },
			[][]string{{"wrong-address latent node2", "For node2, kube-router uses address 192.168.77.5", "kube-router.io/bgp-local-addresses"}}},
		{"interfaces that were not read", func(m *meshed) { m.move(); m.NodeNetworks[1].Interfaces = snapshot.List[snapshot.Interface]{} },
			[][]string{{"wrong-address active node2", "uses address 192.168.77.5, according to the annotation"}}},
		{"Nodes that were not read", func(m *meshed) { m.move(); m.Nodes.Read = false }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh()
			c.make(m)
			checkFindings(t, detected(t, NodeAddress{}, []snapshot.Snapshot{m.Snapshot}), c.want)
		})
	}
}

// checkFindings compares findings with "kind state object" and what their sentences contain.
func checkFindings(t *testing.T, got []Finding, want [][]string) {
	t.Helper()
	for i, f := range got {
		key := fmt.Sprintf("%s %s %s", f.Kind, f.State, f.Object)
		if f.Detector != "node-address" || i >= len(want) || key != want[i][0] {
			t.Errorf("finding %d is %s: %s", i, key, f.Says)
			continue
		}
		must.Contain(t, f.Says, want[i][1:]...)
		if !strings.HasSuffix(f.Says, ".") || strings.HasSuffix(f.Says, "..") {
			t.Errorf("%s says %q", key, f.Says)
		}
	}
	if len(got) < len(want) {
		t.Errorf("%d findings, want %v", len(got), want)
	}
}

func (m *meshed) later(seconds int) snapshot.Snapshot {
	s := m.Snapshot
	s.Time = noon.Add(time.Duration(seconds) * time.Second)
	return s
}

func TestNodeAddressOverTime(t *testing.T) {
	well, down, moved, plugged := newMesh(), newMesh(), newMesh(), newMesh()
	down.render([]string{"node2"})
	moved.move()
	plugged.plug(time.Time{})
	stopped := newMesh() // a calico-node that does not run
	stopped.NodeNetworks[1].BIRD.Items = nil
	lacks := []string{"session-down active node2", "node2 has lacked BGP sessions of Calico's mesh for more than 10s", "BIRD on node1 has 172.29.0.12 (node2) in state Active"}
	coming := []string{"session-down settling node2", "for 0s, although"}
	for _, c := range []struct {
		name    string
		history []snapshot.Snapshot
		want    [][]string
	}{
		{"a short while", []snapshot.Snapshot{well.later(0), down.later(1), down.later(10)}, [][]string{{"session-down settling node2", "node2 has lacked BGP sessions of Calico's mesh for 9s, although"}}},
		{"too long", []snapshot.Snapshot{well.later(0), down.later(1), down.later(6), down.later(11)}, [][]string{lacks}},
		{"up in between", []snapshot.Snapshot{down.later(0), well.later(5), down.later(11)}, [][]string{coming}},
		{"no BIRD for long", []snapshot.Snapshot{stopped.later(0), stopped.later(11)}, [][]string{{"session-down active node2", "BIRD on node2 has no neighbour 172.29.0.11 (node1)"}}},
		{"the address was wrong until now", []snapshot.Snapshot{moved.later(0), moved.later(9), down.later(11)}, [][]string{coming}},
		{"an interface that an earlier snapshot lacks", []snapshot.Snapshot{well.later(0), plugged.later(1)}, [][]string{{"next-address latent node2", "eth1, which appeared after boot (after 12:00:00)"}}},
		{"nothing", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) { checkFindings(t, detected(t, NodeAddress{}, c.history), c.want) })
	}
}

func TestSource(t *testing.T) {
	interfaces := []snapshot.Interface{
		{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("fd00::1/64"), netip.MustParsePrefix("172.29.0.12/24"), netip.MustParsePrefix("172.30.0.12/24")}},
		{Name: "eth1", Addresses: []netip.Prefix{newAddress}},
	}
	hop := func(a, name string) snapshot.NextHop { return snapshot.NextHop{Interface: name, Address: addr(a)} }
	route := func(prefix string, hops ...snapshot.NextHop) snapshot.Route {
		return snapshot.Route{Prefix: netip.MustParsePrefix(prefix), Type: snapshot.RouteUnicast, NextHops: hops}
	}
	metric := route("0.0.0.0/0", hop("192.168.77.1", "eth1"))
	metric.Metric = 100
	blocked := snapshot.Route{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Type: snapshot.RouteUnreachable}
	for _, c := range []struct {
		name     string
		routes   []snapshot.Route
		to, want string
	}{
		{"the next hop's subnet decides", []snapshot.Route{route("0.0.0.0/0", hop("172.30.0.2", "eth0"))}, "8.8.8.8", "172.30.0.12"},
		{"a next hop in no subnet", []snapshot.Route{route("0.0.0.0/0", hop("10.9.9.9", "eth0"))}, "8.8.8.8", "172.29.0.12"},
		{"the longest prefix", []snapshot.Route{route("0.0.0.0/0", hop("172.29.0.2", "eth0")), route("8.8.0.0/16", hop("192.168.77.1", "eth1"))}, "8.8.8.8", "192.168.77.5"},
		{"the lowest metric", []snapshot.Route{metric, route("0.0.0.0/0", hop("172.29.0.2", "eth0"))}, "8.8.8.8", "172.29.0.12"},
		{"ECMP from one address", []snapshot.Route{route("0.0.0.0/0", hop("172.29.0.2", "eth0"), hop("172.29.0.3", "eth0"))}, "8.8.8.8", "172.29.0.12"},
		{"ECMP from two", []snapshot.Route{route("0.0.0.0/0", hop("172.29.0.2", "eth0"), hop("192.168.77.1", "eth1"))}, "8.8.8.8", "several next hops, from 172.29.0.12 and 192.168.77.5"},
		{"itself", nil, "192.168.77.5", "192.168.77.5"},
		{"no route", nil, "8.8.8.8", "no route"},
		{"unreachable", []snapshot.Route{blocked}, "10.1.1.1", "no route"},
		{"no address", []snapshot.Route{route("0.0.0.0/0", hop("172.29.0.2", "eth7"))}, "8.8.8.8", "has no address"},
	} {
		got, err := source(c.routes, interfaces, netip.MustParseAddr(c.to))
		text := got.String()
		if err != nil {
			text = err.Error()
		}
		must.Contain(t, text, c.want)
	}
}
