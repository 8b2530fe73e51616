package audit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// shape is the size of a cluster. A shape always leads to the same snapshot.
type shape struct {
	Nodes    int
	Services int // with two EndpointSlices each; half of them have an address of a load balancer
	Routes   int // of each of the two routers, in its RIB and in its FIB
}

// fullSize is a part of a cluster of 5,000 nodes, 150,000 pods, 10,000 Services and 20,000 EndpointSlices, with two
// routers of 1,000,000 routes each.
func fullSize(part float64) shape {
	scale := func(n int) int { return int(part * float64(n)) }
	return shape{Nodes: scale(5000), Services: scale(10_000), Routes: scale(1_000_000)}
}

const (
	seed = 1
	// podsOfNode is the number of pods on each node. One of them has hostNetwork.
	podsOfNode = 30
	// localEvery: one of so many Services has externalTrafficPolicy Local, and is announced by nodes with an endpoint.
	localEvery = 100
	// nodeAS is the AS of the nodes, and spineAS the AS of the routers' other neighbours.
	nodeAS  = 64513
	spineAS = 64600
	// ownAdvertisements is the number of Services with an advertisement of their own. Node n announces Service n.
	ownAdvertisements = 8
	// edge is the number of nodes that announce the Services without an own advertisement and without policy Local.
	edge = 4
)

// takenAt is the time of the snapshot. All objects are an hour old.
var takenAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var created = takenAt.Add(-time.Hour)

func nth(base netip.Addr, n int) netip.Addr {
	b := base.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

var (
	nodeNet     = netip.MustParseAddr("172.16.0.0")
	podNet      = netip.MustParseAddr("10.0.0.0")
	clusterNet  = netip.MustParseAddr("10.128.0.0")
	balancerNet = netip.MustParseAddr("100.64.0.0")
	spines      = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
)

// Names and addresses of node, or of Service and Deployment, number n.
func nodeName(n int) string        { return fmt.Sprintf("node-%04d", n) }
func nodeAddress(n int) netip.Addr { return nth(nodeNet, n+10) }
func podRange(n int) netip.Prefix  { return netip.PrefixFrom(nth(podNet, n<<8), 24) }

func appName(n int) string        { return fmt.Sprintf("app-%05d", n) }
func appNamespace(n int) string   { return fmt.Sprintf("team-%03d", n%200) }
func balancerIP(n int) netip.Addr { return nth(balancerNet, n) }
func imageDigest(n int) string    { return fmt.Sprintf("sha256:%064x", n) }

func local(n int) bool { return n >= ownAdvertisements && n%localEvery == localEvery-1 }

func balanced(n int) bool { return n < ownAdvertisements || n%2 == 1 }

func (size shape) snapshot() snapshot.Snapshot {
	s := snapshot.Snapshot{Time: takenAt}
	for _, source := range []snapshot.Source{
		snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoBlocks, snapshot.Pods, snapshot.Workloads, snapshot.RunningImages,
		snapshot.Accounts, snapshot.CalicoAgents, snapshot.Services, snapshot.EndpointSlices, snapshot.BGPAdvertisements, snapshot.Routers,
	} {
		s.Sources = append(s.Sources, snapshot.Asked{Name: source.String()})
	}
	for _, read := range []*bool{
		&s.Nodes.Read, &s.CiliumNodes.Read, &s.CalicoBlocks.Read, &s.Pods.Read, &s.Workloads.Read, &s.PodImages.Read, &s.Tags.Read,
		&s.Accounts.Read, &s.CalicoAgents.Read, &s.Services.Read, &s.EndpointSlices.Read, &s.BGPAdvertisements.Read, &s.L2Announcements.Read,
	} {
		*read = true
	}
	size.nodes(&s)
	endpoints := size.pods(&s)
	size.services(&s, endpoints)
	size.routers(&s, endpoints)
	return s
}

func (size shape) nodes(s *snapshot.Snapshot) {
	for n := range size.Nodes {
		node := snapshot.Node{
			Name: nodeName(n), UID: fmt.Sprintf("uid-%d", n), Created: created, InternalIPs: []netip.Addr{nodeAddress(n)},
			PodCIDRs: []netip.Prefix{podRange(n)}, Ready: true,
		}
		s.CiliumNodes.Items = append(s.CiliumNodes.Items, snapshot.CiliumNode{
			Name: node.Name, PodCIDRs: node.PodCIDRs, InternalIPs: node.InternalIPs, Created: created,
		})
		s.Nodes.Items = append(s.Nodes.Items, node)
	}
}

type endpoint struct {
	node string
	ip   netip.Addr
}

// pods makes an agent on each node, and one Deployment for each Service, with its pods on neighbouring nodes.
func (size shape) pods(s *snapshot.Snapshot) (endpoints [][]endpoint) {
	random := rand.New(rand.NewPCG(seed, 1))
	container := func(name, image, tag string, digest int) snapshot.RunningContainer {
		return snapshot.RunningContainer{
			Container: snapshot.Container{Name: name, Image: image + ":" + tag, PullPolicy: "IfNotPresent"},
			ImageID:   image + "@" + imageDigest(digest),
		}
	}
	agent := container("cilium-agent", "registry.example/cilium/cilium", "v1.19.5", 0)
	s.Workloads.Items = append(s.Workloads.Items, snapshot.Workload{Kind: "DaemonSet", Namespace: "kube-system", Name: "cilium", Containers: []snapshot.Container{agent.Container}})
	every := []string{"*"}
	s.Accounts.Items = append(s.Accounts.Items, snapshot.Account{
		Namespace: "kube-system", Name: "cilium", Permissions: []snapshot.Permission{{Groups: every, Resources: every, Verbs: every}},
	})
	endpoints = make([][]endpoint, size.Services)
	apps := make([]snapshot.RunningContainer, size.Services)
	for n := range apps {
		apps[n] = container("app", "registry.example/team/"+appName(n), "v2.13", n+1)
		s.Workloads.Items = append(s.Workloads.Items, snapshot.Workload{Kind: "Deployment", Namespace: appNamespace(n), Name: appName(n), Containers: []snapshot.Container{apps[n].Container}})
		s.Tags.Items = append(s.Tags.Items, snapshot.Tag{Image: apps[n].Image, Digest: imageDigest(n + 1)})
	}
	for node := range size.Nodes {
		s.PodImages.Items = append(s.PodImages.Items, snapshot.PodImages{
			Namespace: "kube-system", Name: "cilium-" + nodeName(node), UID: "agent-" + nodeName(node), Node: nodeName(node), Created: created,
			OwnerKind: "DaemonSet", OwnerName: "cilium", ServiceAccount: "cilium", Template: "abcde", Containers: []snapshot.RunningContainer{agent},
		})
		for i := range podsOfNode - 1 {
			n := (node*(podsOfNode-1) + i) % size.Services
			p := snapshot.Pod{Namespace: appNamespace(n), Name: fmt.Sprintf("%s-7d9f-%05x%04d", appName(n), random.Uint32N(1<<20), node), Node: nodeName(node), IP: nth(podRange(node).Addr(), i+2)}
			s.Pods.Items = append(s.Pods.Items, p)
			s.PodImages.Items = append(s.PodImages.Items, snapshot.PodImages{
				Namespace: p.Namespace, Name: p.Name, UID: "uid-" + p.Name, Node: p.Node, Created: created,
				OwnerKind: "Deployment", OwnerName: appName(n), ServiceAccount: "default", Template: "7d9f", Containers: []snapshot.RunningContainer{apps[n]},
			})
			endpoints[n] = append(endpoints[n], endpoint{p.Node, p.IP})
		}
	}
	inOrder(s.Pods.Items, func(p snapshot.Pod) []string { return []string{p.Namespace, p.Name} })
	inOrder(s.PodImages.Items, func(p snapshot.PodImages) []string { return []string{p.Namespace, p.Name} })
	inOrder(s.Workloads.Items, func(w snapshot.Workload) []string { return []string{w.Kind, w.Namespace, w.Name} })
	for n := range min(size.Services, 200) {
		s.Accounts.Items = append(s.Accounts.Items, snapshot.Account{Namespace: appNamespace(n), Name: "default"})
	}
	return endpoints
}

// services makes Services, their EndpointSlices, and the advertisements of their addresses: one for each of the first
// Services, one from all nodes for Services with the policy Local, and one from a few nodes for the other Services.
func (size shape) services(s *snapshot.Snapshot, endpoints [][]endpoint) {
	var rest, every []string
	for n := range size.Nodes {
		every = append(every, nodeName(n))
		if n >= ownAdvertisements && n < ownAdvertisements+edge {
			rest = append(rest, nodeName(n))
		}
	}
	port := snapshot.ServicePort{Protocol: "TCP", Port: 80}
	ofLocal := snapshot.BGPAdvertisement{Namespace: "metallb-system", Name: "local", Nodes: every}
	ofRest := snapshot.BGPAdvertisement{Namespace: "metallb-system", Name: "edge", Nodes: rest}
	for n, backends := range endpoints {
		service := snapshot.Service{
			Namespace: appNamespace(n), Name: appName(n), ClusterIPs: []netip.Addr{nth(clusterNet, n)}, Ports: []snapshot.ServicePort{port},
			Local: local(n), Created: created,
		}
		if balanced(n) {
			address := balancerIP(n)
			service.LoadBalancerIPs = []netip.Addr{address}
			only := snapshot.AddressRange{First: address, Last: address}
			switch {
			case n < ownAdvertisements:
				s.BGPAdvertisements.Items = append(s.BGPAdvertisements.Items, snapshot.BGPAdvertisement{
					Namespace: "metallb-system", Name: appName(n), Nodes: []string{nodeName(n)}, Ranges: []snapshot.AddressRange{only},
				})
			case local(n):
				ofLocal.Ranges = append(ofLocal.Ranges, only)
			default:
				ofRest.Ranges = append(ofRest.Ranges, only)
			}
		}
		s.Services.Items = append(s.Services.Items, service)
		for _, half := range [][]endpoint{backends[:len(backends)/2], backends[len(backends)/2:]} {
			slice := snapshot.EndpointSlice{Namespace: service.Namespace, Service: service.Name, Ports: []snapshot.ServicePort{port}}
			for _, e := range half {
				slice.Ready = append(slice.Ready, e.ip)
				slice.ReadyNodes = append(slice.ReadyNodes, e.node)
			}
			slices.Sort(slice.ReadyNodes)
			slice.ReadyNodes = slices.Compact(slice.ReadyNodes)
			s.EndpointSlices.Items = append(s.EndpointSlices.Items, slice)
		}
	}
	s.BGPAdvertisements.Items = append(s.BGPAdvertisements.Items, ofRest, ofLocal)
	inOrder(s.Services.Items, func(o snapshot.Service) []string { return []string{o.Namespace, o.Name} })
	inOrder(s.EndpointSlices.Items, func(e snapshot.EndpointSlice) []string { return []string{e.Namespace, e.Service} })
}

func inOrder[T any](all []T, by func(T) []string) {
	slices.SortStableFunc(all, func(a, b T) int { return slices.Compare(by(a), by(b)) })
}

func (size shape) routers(s *snapshot.Snapshot, endpoints [][]endpoint) {
	var paths []snapshot.Path
	learn := func(p netip.Prefix, from ...int) {
		for i, n := range from {
			paths = append(paths, snapshot.Path{
				Prefix: p, NextHop: nodeAddress(n), Neighbor: nodeAddress(n), ASPath: nodePath, Origin: "igp", LocalPref: 100, Best: i == 0, Multipath: true,
			})
		}
	}
	for n := range size.Nodes {
		learn(podRange(n), n)
	}
	for n, backends := range endpoints {
		p := netip.PrefixFrom(balancerIP(n), 32)
		switch {
		case !balanced(n):
		case n < ownAdvertisements:
			learn(p, n%size.Nodes)
		case local(n):
			var on []int
			for _, e := range backends {
				var number int
				fmt.Sscanf(e.node, "node-%d", &number)
				on = append(on, number)
			}
			slices.Sort(on)
			learn(p, slices.Compact(on)...)
		default:
			var on []int
			for i := ownAdvertisements; i < min(ownAdvertisements+edge, size.Nodes); i++ {
				on = append(on, i)
			}
			learn(p, on...)
		}
	}
	hops := [][]snapshot.NextHop{{{Address: spines[0], Interface: "eth1"}}, {{Address: spines[1], Interface: "eth2"}}}
	routes := []snapshot.Route{
		{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteBGP, Metric: 20, NextHops: hops[0]},
		{Prefix: netip.MustParsePrefix("172.16.0.0/16"), Type: snapshot.RouteUnicast, Protocol: snapshot.RouteKernel, NextHops: []snapshot.NextHop{{Interface: "eth0"}}},
	}
	toNode := map[netip.Addr][]snapshot.NextHop{}
	for _, p := range paths {
		if !p.Best {
			continue
		}
		if toNode[p.NextHop] == nil {
			toNode[p.NextHop] = []snapshot.NextHop{{Address: p.NextHop, Interface: "eth0"}}
		}
		routes = append(routes, snapshot.Route{Prefix: p.Prefix, Type: snapshot.RouteUnicast, Protocol: snapshot.RouteBGP, Metric: 20, NextHops: toNode[p.NextHop]})
	}
	for i, p := range size.internet(size.Routes - len(routes)) {
		via := i % len(spines)
		paths = append(paths, snapshot.Path{
			Prefix: p, NextHop: spines[via], Neighbor: spines[via], ASPath: spinePath, Origin: "igp", LocalPref: 100, Best: true, Multipath: true,
		})
		routes = append(routes, snapshot.Route{Prefix: p, Type: snapshot.RouteUnicast, Protocol: snapshot.RouteBGP, Metric: 20, NextHops: hops[via]})
	}
	for _, name := range []string{"tor1", "tor2"} {
		r := snapshot.Router{Name: name}
		r.Paths.Read, r.Routes.Read, r.Neighbors.Read = true, true, true
		r.Paths.Items, r.Routes.Items = slices.Clone(paths), slices.Clone(routes)
		neighbor := func(a netip.Addr, as uint32) {
			r.Neighbors.Items = append(r.Neighbors.Items, snapshot.Neighbor{Address: a, AS: as, RouterID: a, State: snapshot.SessionEstablished, Established: created})
		}
		for n := range size.Nodes {
			neighbor(nodeAddress(n), nodeAS)
		}
		for _, a := range spines {
			neighbor(a, spineAS)
		}
		s.Routers = append(s.Routers, r)
	}
}

var nodePath, spinePath = []uint32{nodeAS}, []uint32{spineAS, 64700, 64800}

// internet returns public prefixes, in order. Six in ten are a /24, as in the routing table of the internet.
func (size shape) internet(count int) []netip.Prefix {
	random := rand.New(rand.NewPCG(seed, 2))
	made := make(map[netip.Prefix]bool, max(count, 0))
	var all []netip.Prefix
	for len(all) < count {
		bits := 24
		if random.IntN(10) < 4 {
			bits = 14 + random.IntN(10)
		}
		p := netip.PrefixFrom(nth(netip.IPv4Unspecified(), int(random.Uint32N(223<<24))), bits).Masked()
		reserved := slices.ContainsFunc(notPublic, p.Overlaps)
		if !reserved && !made[p] {
			made[p] = true
			all = append(all, p)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// notPublic are the ranges that the cluster uses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.0.2.0/24"),
}
