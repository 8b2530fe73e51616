package detect

import (
	"net/netip"
	"slices"
	"sort"
	"sync"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// lookup is a snapshot with what detectors look up in it, each made when it is first asked for. It is for one
// goroutine.
type lookup struct {
	snapshot.Snapshot
	// Of several with one name, detectors take the first.
	proxies       func() map[string][]*snapshot.Proxy
	nats          func() map[string][]*snapshot.NodeNAT
	named         func() map[string][]*snapshot.Node
	networks      func() map[string][]*snapshot.NodeNetwork
	slicesOf      func() map[string][]*snapshot.EndpointSlice // by namespace/name of their Service
	podsOn        func() map[string][]*snapshot.Pod           // by node
	podsByAddress func() []podAt                              // in order of address
	outside       func() map[snapshot.Socket]string           // the first host that has it
	routes        func() *bart.Table[podRoute]
	within        func() bool               // hidesWithin
	flows         map[flowKey]snapshot.Flow // of the node that was asked for last
	flowsNode     string
}

// podAt is an address of a pod, and the pod's place in the snapshot.
type podAt struct {
	address netip.Addr
	place   int
}

func lookups(history []snapshot.Snapshot) []*lookup { return each.Of(history, newLookup) }

func newLookup(s snapshot.Snapshot) *lookup {
	l := &lookup{Snapshot: s}
	l.proxies = grouped(s.Proxies, func(p *snapshot.Proxy) string { return p.Node })
	l.nats = grouped(s.NAT, func(n *snapshot.NodeNAT) string { return n.Node })
	l.named = grouped(s.Nodes.Items, func(n *snapshot.Node) string { return n.Name })
	l.networks = grouped(s.NodeNetworks, func(n *snapshot.NodeNetwork) string { return n.Node })
	l.slicesOf = grouped(s.EndpointSlices.Items, func(e *snapshot.EndpointSlice) string { return e.Namespace + "/" + e.Service })
	l.podsOn = grouped(s.Pods.Items, func(p *snapshot.Pod) string { return p.Node })
	l.podsByAddress = sync.OnceValue(func() []podAt {
		all := make([]podAt, 0, len(l.Pods.Items))
		for i, p := range l.Pods.Items {
			all = append(all, podAt{p.IP, i})
			if p.IPv6.IsValid() {
				all = append(all, podAt{p.IPv6, i})
			}
		}
		slices.SortFunc(all, func(a, b podAt) int { return a.address.Compare(b.address) })
		return all
	})
	l.outside = sync.OnceValue(func() map[snapshot.Socket]string {
		hosts := map[snapshot.Socket]string{}
		for _, o := range slices.Backward(l.Outside) {
			for _, socket := range o.Sockets.Items {
				hosts[socket] = o.Host
			}
		}
		return hosts
	})
	l.routes = sync.OnceValue(l.podRoutes)
	l.within = sync.OnceValue(l.hidesWithin)
	return l
}

func grouped[T any](items []T, key func(*T) string) func() map[string][]*T {
	return sync.OnceValue(func() map[string][]*T {
		all := map[string][]*T{}
		for i := range items {
			name := key(&items[i])
			all[name] = append(all[name], &items[i])
		}
		return all
	})
}

func (l *lookup) addressesIn(p netip.Prefix) []podAt {
	all := l.podsByAddress()
	first, _ := slices.BinarySearchFunc(all, p.Masked().Addr(), func(at podAt, a netip.Addr) int { return at.address.Compare(a) })
	return all[first:][:sort.Search(len(all)-first, func(i int) bool { return !p.Contains(all[first+i].address) })]
}

// podsIn are the pods with an address in a range, in the order of the snapshot.
func (l *lookup) podsIn(p netip.Prefix) []snapshot.Pod {
	places := each.Of(l.addressesIn(p), func(at podAt) int { return at.place })
	slices.Sort(places)
	return each.Of(places, func(i int) snapshot.Pod { return l.Pods.Items[i] })
}

func (l *lookup) proxy(node string) (p snapshot.Proxy, read bool) {
	if proxies := l.proxies()[node]; len(proxies) > 0 {
		return *proxies[0], proxies[0].Read
	}
	return p, false
}

// flowKey is equal for flows of two snapshots that are the same entry of connection tracking.
type flowKey struct {
	protocol           string
	source, to, seenAs netip.AddrPort
}

// flow finds a flow among the entries of a node. Read is false if the node's flows were not read.
func (l *lookup) flow(node string, f snapshot.Flow) (was snapshot.Flow, there, read bool) {
	nats := l.nats()[node]
	if len(nats) == 0 || !nats[0].Flows.Read {
		return was, false, false
	}
	if l.flows == nil || l.flowsNode != node {
		l.flows, l.flowsNode = map[flowKey]snapshot.Flow{}, node
		for _, g := range slices.Backward(nats[0].Flows.Items) { // of equal entries the first
			l.flows[flowKey{g.Protocol, g.Source, g.Destination, g.SeenAs}] = g
		}
	}
	was, there = l.flows[flowKey{f.Protocol, f.Source, f.Destination, f.SeenAs}]
	return was, there, true
}

// podRoutes are the routes of routers' kernels to the cluster's pods: a route inside the nodes' ranges or Calico's
// pools, a route to a node, or any route of a router that gets the pod ranges as an operator says. A summary of the
// site, such as 10.0.0.0/8, is none.
func (l *lookup) podRoutes() *bart.Table[podRoute] {
	var ranges bart.Lite
	nodes := map[netip.Addr]bool{}
	for _, p := range l.CalicoPools.Items {
		ranges.Insert(p.CIDR)
	}
	for _, n := range l.CiliumNodes.Items {
		for _, p := range n.PodCIDRs {
			ranges.Insert(p)
		}
		for _, pool := range n.Pools {
			for _, p := range pool.CIDRs {
				ranges.Insert(p)
			}
		}
	}
	for _, n := range l.Nodes.Items {
		for _, p := range n.PodCIDRs {
			ranges.Insert(p)
		}
		for _, a := range slices.Concat(n.InternalIPs, n.KubeRouterAddresses, []netip.Addr{n.Calico.Address.Addr()}) {
			nodes[a] = a.IsValid()
		}
	}
	all := &bart.Table[podRoute]{}
	for _, r := range l.Routers {
		for _, route := range r.Routes.Items {
			toNode := slices.ContainsFunc(route.NextHops, func(h snapshot.NextHop) bool { return nodes[h.Address] })
			if route.Prefix.Bits() == 0 || len(route.NextHops) == 0 || !r.Pods && !toNode && !ranges.LookupPrefix(route.Prefix) ||
				len(l.addressesIn(route.Prefix)) == 0 {
				continue
			}
			all.Modify(route.Prefix, func(to podRoute, _ bool) (podRoute, bool) {
				to.prefix = route.Prefix
				if !slices.Contains(to.routers, r.Name) {
					to.routers = append(to.routers, r.Name)
				}
				return to, false
			})
		}
	}
	return all
}
