package audit

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// sown is a copy of a snapshot, with faults. Both share their items: an item is replaced, and not changed.
type sown struct{ *snapshot.Snapshot }

func itemOf[T any](all []T, matches func(T) bool) *T { return &all[slices.IndexFunc(all, matches)] }

func (s sown) node(n int) *snapshot.Node {
	return itemOf(s.Nodes.Items, func(o snapshot.Node) bool { return o.Name == nodeName(n) })
}

func (s sown) cilium(n int) *snapshot.CiliumNode {
	return itemOf(s.CiliumNodes.Items, func(o snapshot.CiliumNode) bool { return o.Name == nodeName(n) })
}

// withdraw removes the matching paths of some routers. The first remaining path to the same prefix becomes the best.
func (s sown) withdraw(match func(snapshot.Path) bool, routers ...int) {
	for _, i := range routers {
		lost := map[netip.Prefix]bool{}
		r := &s.Routers[i]
		for _, p := range r.Paths.Items {
			if match(p) && p.Best {
				lost[p.Prefix] = true
			}
		}
		r.Paths.Items = slices.DeleteFunc(r.Paths.Items, match)
		for j := range r.Paths.Items {
			if p := &r.Paths.Items[j]; lost[p.Prefix] {
				p.Best = true
				delete(lost, p.Prefix)
			}
		}
	}
}

func (s sown) announce(p netip.Prefix, from netip.Addr) {
	for i := range s.Routers {
		r := &s.Routers[i]
		r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: p, NextHop: from, Neighbor: from, ASPath: []uint32{nodeAS}, Best: true})
	}
}

func (s sown) end(n int) {
	for i := range s.Routers {
		for j := range s.Routers[i].Neighbors.Items {
			if o := &s.Routers[i].Neighbors.Items[j]; o.Address == nodeAddress(n) {
				o.State = "active"
			}
		}
	}
	s.withdraw(func(p snapshot.Path) bool { return p.Neighbor == nodeAddress(n) }, 0, 1)
}

func (s sown) advertisement(n int) *snapshot.BGPAdvertisement {
	return itemOf(s.BGPAdvertisements.Items, func(b snapshot.BGPAdvertisement) bool { return b.Name == appName(n) })
}

func (s sown) template(n int, image string) {
	w := itemOf(s.Workloads.Items, func(w snapshot.Workload) bool { return w.Name == appName(n) })
	w.Containers = slices.Clone(w.Containers)
	w.Containers[0].Image = image
}

// replace replaces a pod of a Deployment by a newer one, with another image and template, on a node without a fault.
// The registry has no tag of that image.
func (s sown) replace(n int, template string) {
	healthy := func(p snapshot.PodImages) bool { return p.OwnerName == appName(n) && p.Node > nodeName(60) }
	p := itemOf(s.PodImages.Items, healthy)
	p.Created, p.Template, p.Containers = takenAt.Add(-time.Minute), template, slices.Clone(p.Containers)
	p.Containers[0].ImageID = "registry.example/team/" + appName(n) + "@" + imageDigest(1<<30)
	s.Tags.Items = slices.DeleteFunc(s.Tags.Items, func(t snapshot.Tag) bool { return t.Image == p.Containers[0].Image })
}

func (s sown) on(n int) string {
	return itemOf(s.EndpointSlices.Items, func(e snapshot.EndpointSlice) bool { return e.Service == appName(n) }).ReadyNodes[0]
}

func matchPrefix(p netip.Prefix) func(snapshot.Path) bool {
	return func(o snapshot.Path) bool { return o.Prefix == p }
}

func balancer(n int) netip.Prefix { return netip.PrefixFrom(balancerIP(n), 32) }

// faults are of different kinds. Each leads to one finding, and has a part of the finding's sentence.
var faults = []struct {
	name string
	sow  func(s sown)
	want string // state, kind and object
	says string
}{
	{"a range is missing on one router", func(s sown) { s.withdraw(matchPrefix(podRange(18)), 0) }, "active unannounced 10.0.18.0/24", "tor1 has no route to 10.0.18.0/24 (tor2 has one)"},
	{"a range is missing on both", func(s sown) { s.withdraw(matchPrefix(podRange(19)), 0, 1) }, "active unannounced 10.0.19.0/24", "tor1 and tor2 have no route"},
	{"a node without sessions", func(s sown) { s.end(22) }, "active unannounced 10.0.22.0/24", "node-0022 has no BGP session with tor1 and tor2"},
	{"a range of IPv6 is missing", func(s sown) {
		for i, n := range []int{46, 47} {
			c := s.cilium(n)
			c.PodCIDRs = append(slices.Clone(c.PodCIDRs), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 7: byte(i)}), 64))
		}
		for i := range s.Routers {
			s.Routers[i].IPv6 = true
		}
		s.announce(netip.MustParsePrefix("fd00:0:0:1::/64"), nodeAddress(47))
	}, "active unannounced fd00::/64", "node-0046 announces"},
	{"the wrong announcer", func(s sown) {
		s.withdraw(matchPrefix(podRange(23)), 0, 1)
		s.announce(podRange(23), nodeAddress(24))
	}, "latent wrong-announcer 10.0.23.0/24", "go through node-0024"},
	{"a borrowed address whose pod runs elsewhere", func(s sown) { s.announce(netip.MustParsePrefix("10.0.41.5/32"), nodeAddress(42)) }, "latent wrong-announcer 10.0.41.5/32", "CiliumNode node-0041 holds that range"},
	{"a node that is gone, and its object is left", func(s sown) {
		s.Nodes.Items = slices.DeleteFunc(s.Nodes.Items, func(n snapshot.Node) bool { return n.Name == nodeName(25) })
		s.withdraw(func(p snapshot.Path) bool { return p.Neighbor == nodeAddress(25) && p.Prefix.IsSingleIP() }, 0, 1)
	}, "latent absent-node 10.0.25.0/24", "which is no longer a Node"},
	{"a stranger in the nodes' AS", func(s sown) {
		stranger := netip.MustParseAddr("172.16.200.1")
		s.withdraw(matchPrefix(podRange(26)), 0, 1)
		s.announce(podRange(26), stranger)
		for i := range s.Routers {
			s.Routers[i].Neighbors.Items = append(s.Routers[i].Neighbors.Items, snapshot.Neighbor{Address: stranger, AS: nodeAS, State: snapshot.SessionEstablished})
		}
	}, "latent absent-node 10.0.26.0/24", "is in the AS of the nodes and is no Node"},
	{"a range that nobody holds", func(s sown) {
		s.CiliumNodes.Items = slices.DeleteFunc(s.CiliumNodes.Items, func(n snapshot.CiliumNode) bool { return n.Name == nodeName(45) })
	}, "latent absent-node 10.0.45.0/24", "no CiliumNode holds that range"},
	{"a range with two owners", func(s sown) { s.cilium(27).PodCIDRs = []netip.Prefix{podRange(27), podRange(28)} }, "active twin-range 10.0.28.0/24", "node-0027 and CiliumNode node-0028 both hold"},
	{"a node's address in another subnet", func(s sown) { s.cilium(29).InternalIPs = []netip.Addr{netip.MustParseAddr("192.168.99.9")} }, "latent wrong-address node-0029", "192.168.99.9"},
	{"a Service without a route: the node is cordoned", func(s sown) {
		s.node(0).Unschedulable = true
		s.withdraw(matchPrefix(balancer(0)), 0, 1)
	}, "active no-route 100.64.0.0/32", "node-0000 is unschedulable"},
	{"a Service without a route: the node has a label", func(s sown) {
		s.node(1).Excluded = true
		s.withdraw(matchPrefix(balancer(1)), 0, 1)
	}, "active no-route 100.64.0.1/32", "node-0001 has the label node.kubernetes.io/exclude-from-external-load-balancers"},
	{"a Service without a route: policy Local", func(s sown) {
		itemOf(s.Services.Items, func(b snapshot.Service) bool { return b.Name == appName(2) }).Local = true
		s.advertisement(2).Nodes = []string{s.on(2), nodeName(60)}
		s.withdraw(matchPrefix(balancer(2)), 0, 1)
	}, "active no-route 100.64.0.2/32", "node-0060 has no ready endpoint of its own"},
	{"a Service without a route: no session, and a static route to the pods", func(s sown) {
		s.end(3)
		for i := range s.Routers {
			s.Routers[i].Routes.Items = append(s.Routers[i].Routes.Items, snapshot.Route{
				Prefix: podRange(3), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteStatic, NextHops: []snapshot.NextHop{{Address: nodeAddress(3)}},
			})
		}
	}, "active no-route 100.64.0.3/32", "node-0003 has no BGP session"},
	{"an unpinned tag", func(s sown) { s.template(30, "registry.example/team/app-00030:latest") }, "hint latest-tag Deployment team-030/app-00030, container app", "the image that latest refers to"},
	{"a tag that has moved", func(s sown) {
		moved := itemOf(s.Tags.Items, func(t snapshot.Tag) bool { return strings.Contains(t.Image, appName(32)) })
		moved.Digest = "sha256:" + strings.Repeat("ab", 32)
	}, "hint moved-tag Deployment team-032/app-00032, container app", "The registry now has sha256:abab"},
	{"two images under one template", func(s sown) { s.replace(33, "7d9f") }, "latent mixed-images Deployment team-033/app-00033, container app", "with the same pod template"},
	{"another image at another revision", func(s sown) { s.replace(34, "newer") }, "latent changed-image Deployment team-034/app-00034, container app", "at another revision"},
	{"a permission that is lost", func(s sown) {
		s.Accounts.Items = append(s.Accounts.Items, snapshot.Account{Namespace: "kube-system", Name: "cilium-40"})
		p := itemOf(s.PodImages.Items, func(p snapshot.PodImages) bool { return p.Name == "cilium-"+nodeName(40) })
		p.ServiceAccount = "cilium-40"
	}, "latent not-permitted ServiceAccount kube-system/cilium-40, registry.example/cilium/cilium:v1.19.5", "may not"},
}

func sow(clean snapshot.Snapshot, sows ...func(sown)) snapshot.Snapshot {
	s := clean
	s.Nodes.Items = slices.Clone(s.Nodes.Items)
	s.CiliumNodes.Items = slices.Clone(s.CiliumNodes.Items)
	s.Services.Items = slices.Clone(s.Services.Items)
	s.BGPAdvertisements.Items = slices.Clone(s.BGPAdvertisements.Items)
	s.Workloads.Items = slices.Clone(s.Workloads.Items)
	s.PodImages.Items = slices.Clone(s.PodImages.Items)
	s.Tags.Items = slices.Clone(s.Tags.Items)
	s.Accounts.Items = slices.Clone(s.Accounts.Items)
	s.Routers = slices.Clone(s.Routers)
	for i := range s.Routers {
		r := &s.Routers[i]
		r.Paths.Items, r.Routes.Items, r.Neighbors.Items = slices.Clone(r.Paths.Items), slices.Clone(r.Routes.Items), slices.Clone(r.Neighbors.Items)
	}
	for _, change := range sows {
		change(sown{&s})
	}
	return s
}

// allFaults returns the functions that sow the faults, and the expected findings, in order.
func allFaults() (sows []func(sown), want []string) {
	for _, f := range faults {
		sows, want = append(sows, f.sow), append(want, f.want)
	}
	slices.Sort(want)
	return sows, want
}

func named(findings []detect.Finding) []string {
	all := each.Of(findings, func(f detect.Finding) string { return fmt.Sprintf("%s %s %s", f.State, f.Kind, f.Object) })
	slices.Sort(all)
	return all
}

// In a smaller cluster twenty faults are found, each alone and all at once, and nothing else; without faults nothing is
// found. BenchmarkLargeCluster has the full size.
func TestFaultsInLargeCluster(t *testing.T) {
	clean := fullSize(1. / 16).snapshot()
	j := judge(clean)
	must.Equal(t, "without faults", [...]int{0, 0}, [...]int{len(j.findings), len(j.gaps)})
	must.Equal(t, "", 20, len(faults))
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			found := judge(sow(clean, f.sow)).findings
			must.Equal(t, "", []string{f.want}, named(found))
			must.Contain(t, fmt.Sprint(found), f.says)
		})
	}
	sows, want := allFaults()
	must.Equal(t, "all at once", want, named(judge(sow(clean, sows...)).findings))
}

// ofNodes are two reads of a cluster with its nodes: what each of them tracks, and on four of them the
// IPVS table of all Services. There is one fault for each detector of nodes, and what they find.
func ofNodes(clean snapshot.Snapshot) (reads []snapshot.Snapshot, want []string) {
	const proxies, flows = 4, 20
	s := clean
	s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Read: true, Items: []snapshot.ConfigMap{
		{Namespace: "kube-system", Name: "cilium-config", Data: map[string]string{"enable-ipv4-masquerade": "false"}},
	}}
	udp, target := snapshot.ServicePort{Name: "udp", Protocol: "UDP", Port: 53}, snapshot.ServicePort{Name: "udp", Protocol: "UDP", Port: 5300}
	s.Services.Items, s.EndpointSlices.Items = slices.Clone(s.Services.Items), slices.Clone(s.EndpointSlices.Items)
	endpoints := map[string][]netip.Addr{}
	for i := range s.EndpointSlices.Items {
		e := &s.EndpointSlices.Items[i]
		e.Ports = append(slices.Clone(e.Ports), target)
		endpoints[e.Namespace+"/"+e.Service] = append(endpoints[e.Namespace+"/"+e.Service], e.Ready...)
	}
	var table []snapshot.VirtualServer
	for i := range s.Services.Items {
		service := &s.Services.Items[i]
		tcp := service.Ports[0]
		service.Ports = []snapshot.ServicePort{tcp, udp}
		for from, to := range map[snapshot.ServicePort]snapshot.ServicePort{tcp: tcp, udp: target} {
			v := snapshot.VirtualServer{Protocol: from.Protocol, Address: netip.AddrPortFrom(service.ClusterIPs[0], from.Port)}
			for _, a := range endpoints[service.String()] {
				v.Servers = append(v.Servers, snapshot.RealServer{Address: netip.AddrPortFrom(a, to.Port), Weight: 1})
			}
			table = append(table, v)
		}
	}
	later := s.Time.Add(15 * time.Second)
	for n := range s.Nodes.Items {
		node := s.Nodes.Items[n].Name
		nat := snapshot.NodeNAT{Node: node}
		nat.Rules = snapshot.List[snapshot.Rule]{Read: true, Items: []snapshot.Rule{
			{Chain: "POSTROUTING", Target: "MASQUERADE", Source: snapshot.Match{Range: netip.MustParsePrefix("192.168.0.0/16")}, Text: "-s 192.168.0.0/16 -j MASQUERADE"},
		}}
		nat.Flows.Read = true
		for i := range flows {
			from := netip.AddrPortFrom(podRange(n).Addr().Next().Next(), uint16(40000+i))
			service := s.Services.Items[(n*flows+i)%len(s.Services.Items)]
			nat.Flows.Items = append(nat.Flows.Items,
				snapshot.Flow{Protocol: "tcp", Source: from, SeenAs: from, Destination: netip.MustParseAddrPort("203.0.113.9:443"), Established: true},
				snapshot.Flow{
					Protocol: "udp", Source: from, SeenAs: from, Destination: netip.AddrPortFrom(service.ClusterIPs[0], udp.Port), Redirected: true,
					AnsweredBy: netip.AddrPortFrom(endpoints[service.String()][0], target.Port), Expires: time.Minute,
				})
		}
		s.NAT = append(s.NAT, nat)
		if n < proxies {
			s.Proxies = append(s.Proxies, snapshot.Proxy{
				Node: node, Read: true, Mode: "ipvs", Table: table,
				Health: snapshot.ProxyHealth{Status: 200, LastUpdated: s.Time, CurrentTime: later},
			})
		}
	}
	gone := &s.NAT[5].Flows.Items[1]
	gone.AnsweredBy = netip.MustParseAddrPort("10.255.255.1:5300")
	s.NAT[7].Rules.Items = append(s.NAT[7].Rules.Items, snapshot.Rule{Chain: "POSTROUTING", Target: "MASQUERADE", Source: snapshot.Match{Range: podRange(7)}, Text: "-j MASQUERADE"})
	s.Proxies[3].Table = slices.Clone(table[:len(table)-1])
	second := s
	second.Time = later
	service := itemOf(s.Services.Items, func(b snapshot.Service) bool { return b.ClusterIPs[0] == gone.Destination.Addr() })
	return []snapshot.Snapshot{s, second}, []string{
		"active gone-endpoint " + service.String() + ":53/UDP", "active missing-service " + s.Proxies[3].Node,
		"latent hidden-source " + podRange(7).String(),
	}
}

// BenchmarkLargeCluster judges one read of a cluster by all detectors, without faults and with twenty, in four sizes up
// to 5,000 nodes and two routers of a million routes. B/op is all allocated memory, and so a bound of the additional
// heap. The heap of the snapshot is the metric MiB-snapshot.
func BenchmarkLargeCluster(b *testing.B) {
	for _, part := range []int{8, 4, 2, 1} {
		before := heap()
		clean := fullSize(1 / float64(part)).snapshot()
		size := heap() - before
		sows, want := allFaults()
		bad := sow(clean, sows...)
		for _, run := range []struct {
			name string
			read snapshot.Snapshot
			want []string
		}{{"clean", clean, nil}, {"20-faults", bad, want}} {
			b.Run(fmt.Sprintf("%d-nodes/%s", len(clean.Nodes.Items), run.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					must.Equal(b, "", run.want, named(judge(run.read).findings))
				}
				b.ReportMetric(size, "MiB-snapshot")
			})
		}
	}
}

// Of two reads of such a cluster that have its nodes too, the faults are found, and nothing besides.
func TestNodesOfLargeCluster(t *testing.T) {
	reads, want := ofNodes(fullSize(1. / 64).snapshot())
	must.Equal(t, "", want, named(judge(reads...).findings))
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
