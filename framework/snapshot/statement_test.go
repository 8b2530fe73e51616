package snapshot

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// twoNodes is a cluster of two nodes behind a router, as each layer describes it.
func twoNodes() Snapshot {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	pods := netip.MustParsePrefix("10.1.1.0/24")
	return Snapshot{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Nodes: List[Node]{Read: true, Items: []Node{
			{Name: "a", InternalIPs: []netip.Addr{a}, Ready: true},
			{Name: "b", InternalIPs: []netip.Addr{b}, PodCIDRs: []netip.Prefix{pods}, Calico: CalicoNode{Address: netip.MustParsePrefix("10.0.0.2/24")}},
		}},
		CiliumNodes: List[CiliumNode]{Read: true, Items: []CiliumNode{{Name: "a", PodCIDRs: []netip.Prefix{pods}}}},
		Routers: []Router{{
			Name:      "tor",
			Paths:     List[Path]{Read: true, Items: []Path{{Prefix: pods, NextHop: b, Best: true}, {Prefix: pods, NextHop: a}}},
			Routes:    List[Route]{Read: true, Items: []Route{{Prefix: pods, Type: RouteUnicast, NextHops: []NextHop{{Address: b, Interface: "eth0"}}}}},
			Neighbors: List[Neighbor]{Read: true, Items: []Neighbor{{Address: b, AS: 64512, State: "established"}}},
		}},
		NodeTables: []NodeTable{{Node: "a", Routes: List[Route]{Read: true, Items: []Route{{Prefix: pods, Type: RouteBlackhole}}}}},
		NodeNetworks: []NodeNetwork{{
			Node:       "a",
			Interfaces: List[Interface]{Read: true, Items: []Interface{{Name: "eth0", Type: "device", Flags: "up", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, {Name: "cali1", Type: "veth"}}},
			BIRD:       List[BIRDProtocol]{Read: true, Items: []BIRDProtocol{{Name: "Mesh", Proto: "BGP", BGPState: Established, Neighbor: b}, {Name: "kernel1", Proto: "Kernel"}}},
		}},
		Proxies: []Proxy{{Node: "a", Read: true, Mode: "ipvs", Health: ProxyHealth{Status: 503}, Table: []VirtualServer{{
			Address: netip.MustParseAddrPort("10.9.0.1:80"), Servers: []RealServer{{Address: netip.MustParseAddrPort("10.1.1.7:80"), Weight: 1}, {Address: netip.MustParseAddrPort("10.1.1.8:80")}},
		}}}},
		Services:       List[Service]{Read: true, Items: []Service{{Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.9.0.1")}}}},
		EndpointSlices: List[EndpointSlice]{Read: true, Items: []EndpointSlice{{Namespace: "default", Service: "web"}}},
		NAT: []NodeNAT{{
			Node: "b", Rules: List[Rule]{Read: true, Items: []Rule{{Text: "-A POSTROUTING -j MASQUERADE"}}},
			Programs: List[Program]{Read: true, Items: []Program{{Device: "eth0", Name: "bpf_host.o"}}},
		}},
		ConfigMaps: List[ConfigMap]{Read: true, Items: []ConfigMap{{Namespace: "kube-system", Name: "c", Data: map[string]string{"tunnel": "disabled"}}}},
		Workloads:  List[Workload]{Read: true, Items: []Workload{{Kind: "DaemonSet", Namespace: "default", Name: "d", Containers: []Container{{Name: "c", Image: "i", PullPolicy: "Always"}}}}},
		PodImages:  List[PodImages]{Read: true, Items: []PodImages{{Namespace: "default", Name: "d-1", Node: "a", OwnerKind: "DaemonSet", OwnerName: "d", Containers: []RunningContainer{{Container: Container{Name: "c"}, ImageID: "i@sha256:1"}}}}},
		Tags:       List[Tag]{Read: true, Items: []Tag{{Image: "i", Digest: "sha256:2"}, {Image: "j", Error: "gone"}}},
	}
}

func TestStatements(t *testing.T) {
	got := each.Of(twoNodes().Statements(), func(s Statement) string {
		return strings.TrimSuffix(fmt.Sprintf("%s | %s | %s: %s [%s]", s.Layer, s.Object, s.Where, s.Says, s.Node), " []")
	})
	want := []string{
		"API | 10.1.1.0/24 | Node.spec.podCIDRs: b [b]",
		"API | ConfigMap kube-system/c, tunnel | ConfigMap kube-system/c: \"disabled\"",
		"API | DaemonSet default/d, container c | template: i, pulled Always",
		"API | a | Node a: InternalIP 10.0.0.1, ready [a]",
		"API | b | Node b: InternalIP 10.0.0.2, not ready [b]",
		"API | default/web | EndpointSlice: no ready endpoint",
		"agent | 10.1.1.0/24 | CiliumNode.spec.ipam.podCIDRs: a [a]",
		"agent | a | kube-proxy on a: ipvs, healthz 503",
		"agent | b | Calico's annotation of b: 10.0.0.2/24",
		"agent | i | registry: sha256:2",
		"BGP | b | BIRD on a: session with 10.0.0.2: Established",
		"BGP | b | tor: session with 10.0.0.2 (AS 64512): established",
		"RIB | 10.1.1.0/24 | tor: next hop 10.0.0.2 (b) [b]",
		"FIB | 10.1.1.0/24 | tor: via 10.0.0.2 (b) dev eth0 [b]",
		"kernel | 10.1.1.0/24 | a: blackhole",
		"kernel | DaemonSet default/d, container c | runs on a: i@sha256:1",
		"kernel | a | eth0 of a: 10.0.0.1/24",
		"kernel | b | nat table of b: -A POSTROUTING -j MASQUERADE",
		"kernel | b | tc egress of b: eth0: bpf_host.o",
		"kernel | default/web | IPVS of a: 10.1.1.7",
	}
	must.Equal(t, "statements", want, got)
}

func TestChanges(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Snapshot)
		want   []string
	}{
		{"nothing", func(*Snapshot) {}, nil},
		{"a route goes", func(s *Snapshot) { s.Routers[0].Routes.Items = nil }, []string{"FIB tor 10.1.1.0/24: via 10.0.0.2 (b) dev eth0 -> "}},
		{"a session falls", func(s *Snapshot) { s.Routers[0].Neighbors.Items[0].State = "active" }, []string{
			"BGP tor b: session with 10.0.0.2 (AS 64512): established -> session with 10.0.0.2 (AS 64512): active",
		}},
		{"a node goes, which changes no route to its address", func(s *Snapshot) { s.Nodes.Items = s.Nodes.Items[:1] }, []string{
			"API Node b b: InternalIP 10.0.0.2, not ready -> ", "API Node.spec.podCIDRs 10.1.1.0/24: b -> ", "agent Calico's annotation of b b: 10.0.0.2/24 -> ",
		}},
		{"a card comes", func(s *Snapshot) {
			s.NodeNetworks[0].Interfaces.Items[1] = Interface{Name: "eth1", Type: "device", Addresses: []netip.Prefix{netip.MustParsePrefix("10.7.0.1/24")}}
		}, []string{"kernel eth1 of a a:  -> 10.7.0.1/24"}},
		{"what a load changes", func(s *Snapshot) {
			s.Proxies[0].Table, s.NAT[0].Rules.Items, s.EndpointSlices.Items = nil, nil, nil
		}, nil},
		{"an unavailable part hides no other", func(s *Snapshot) {
			s.Nodes = List[Node]{Error: "no answer"}
			s.ConfigMaps.Items = []ConfigMap{{Namespace: "kube-system", Name: "c", Data: map[string]string{"tunnel": "vxlan"}}}
		}, []string{`API ConfigMap kube-system/c ConfigMap kube-system/c, tunnel: "disabled" -> "vxlan"`}},
		{"what was not read", func(s *Snapshot) {
			s.Nodes, s.CiliumNodes, s.Routers[0].Routes = List[Node]{Error: "no answer"}, List[CiliumNode]{Error: "no answer"}, List[Route]{Error: "no answer"}
			s.NodeNetworks[0].Interfaces, s.NodeNetworks[0].BIRD = List[Interface]{Error: "no answer"}, List[BIRDProtocol]{Error: "no answer"}
			s.Proxies[0] = Proxy{Node: "a", Error: "no answer"}
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			after := twoNodes()
			test.change(&after)
			after.Time = after.Time.Add(time.Second)
			must.Equal(t, "changes", test.want, each.Of(Changes(twoNodes(), after), func(c Change) string {
				must.Equal(t, "its time", after.Time, c.At)
				return fmt.Sprintf("%s %s %s: %s -> %s", c.Layer, c.Where, c.Object, c.From, c.To)
			}))
		})
	}
}
