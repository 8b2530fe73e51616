package detect

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// lookup is a snapshot with what detectors that judge each node look up in it, each made when it is
// first asked for. It is for one goroutine.
type lookup struct {
	snapshot.Snapshot
	// Places in the lists of the snapshot: the first of a node in Proxies, NAT and Nodes,
	// EndpointSlices by namespace/name of their Service, and pods by address and by node.
	proxies, nats, nodes func() map[string]int
	slicesOf, podsOn     func() map[string][]int
	podsAt               func() map[netip.Addr][]int
	outside              func() map[snapshot.Socket]string // the first host that has it
	routes               func() *bart.Table[podRoute]
	cards                func() map[string]map[netip.Addr]bool // the addresses of nodes' interfaces
	within               func() bool                           // hidesWithin
	flows                map[flowKey]snapshot.Flow             // of the node that was asked for last
	flowsNode            string
}

func lookups(history []snapshot.Snapshot) []*lookup {
	all := make([]*lookup, len(history))
	for i, s := range history {
		l := &lookup{Snapshot: s}
		l.proxies = sync.OnceValue(func() map[string]int { return firsts(s.Proxies, func(p *snapshot.Proxy) string { return p.Node }) })
		l.nats = sync.OnceValue(func() map[string]int { return firsts(s.NAT, func(n *snapshot.NodeNAT) string { return n.Node }) })
		l.nodes = sync.OnceValue(func() map[string]int { return firsts(s.Nodes.Items, func(n *snapshot.Node) string { return n.Name }) })
		l.slicesOf = sync.OnceValue(func() map[string][]int {
			return places(s.EndpointSlices.Items, func(e *snapshot.EndpointSlice) []string { return []string{e.Namespace + "/" + e.Service} })
		})
		l.podsOn = sync.OnceValue(func() map[string][]int {
			return places(s.Pods.Items, func(p *snapshot.Pod) []string { return []string{p.Node} })
		})
		l.podsAt = sync.OnceValue(func() map[netip.Addr][]int {
			return places(s.Pods.Items, func(p *snapshot.Pod) []netip.Addr {
				return slices.DeleteFunc([]netip.Addr{p.IP, p.IPv6}, func(a netip.Addr) bool { return !a.IsValid() })
			})
		})
		l.outside = sync.OnceValue(func() map[snapshot.Socket]string {
			hosts := map[snapshot.Socket]string{}
			for _, o := range slices.Backward(s.Outside) {
				for _, socket := range o.Sockets.Items {
					hosts[socket] = o.Host
				}
			}
			return hosts
		})
		l.routes = sync.OnceValue(l.podRoutes)
		l.cards = sync.OnceValue(func() map[string]map[netip.Addr]bool {
			all := map[string]map[netip.Addr]bool{}
			for _, n := range s.NodeNetworks {
				all[n.Node] = map[netip.Addr]bool{}
				for _, card := range n.Interfaces.Items {
					for _, p := range card.Addresses {
						all[n.Node][p.Addr()] = true
					}
				}
			}
			return all
		})
		l.within = sync.OnceValue(l.hidesWithin)
		all[i] = l
	}
	return all
}

func firsts[T any](items []T, name func(*T) string) map[string]int {
	all := make(map[string]int, len(items))
	for i := range items {
		if _, there := all[name(&items[i])]; !there {
			all[name(&items[i])] = i
		}
	}
	return all
}

// places are all places in a list by key, in order.
func places[T any, K comparable](items []T, keys func(*T) []K) map[K][]int {
	all := map[K][]int{}
	for i := range items {
		for _, key := range keys(&items[i]) {
			all[key] = append(all[key], i)
		}
	}
	return all
}

func (l *lookup) proxy(node string) (snapshot.Proxy, bool) {
	i, there := l.proxies()[node]
	if !there || !l.Proxies[i].Read {
		return snapshot.Proxy{}, false
	}
	return l.Proxies[i], true
}

// flowKey is what the flows of two snapshots have in common that are the same entry.
type flowKey struct {
	protocol           string
	source, to, seenAs netip.AddrPort
}

// flow is the entry of a node that is the same as a flow, if the node has it. Read is false if the
// node's flows were not read.
func (l *lookup) flow(node string, f snapshot.Flow) (was snapshot.Flow, there, read bool) {
	i, is := l.nats()[node]
	if !is || !l.NAT[i].Flows.Read {
		return was, false, false
	}
	if l.flows == nil || l.flowsNode != node {
		l.flows, l.flowsNode = map[flowKey]snapshot.Flow{}, node
		for _, g := range slices.Backward(l.NAT[i].Flows.Items) { // the first of those that are the same
			l.flows[flowKey{g.Protocol, g.Source, g.Destination, g.SeenAs}] = g
		}
	}
	was, there = l.flows[flowKey{f.Protocol, f.Source, f.Destination, f.SeenAs}]
	return was, there, true
}

// podRoutes are the routes of routers' kernels that are for the cluster's pods: they are inside the nodes' ranges
// or Calico's pools, or lead to a node, or the router is said to get the pod ranges. A summary of the site, such as
// 10.0.0.0/8, is not.
func (l *lookup) podRoutes() *bart.Table[podRoute] {
	pods := each.Of(l.Pods.Items, func(p snapshot.Pod) netip.Addr { return p.IP })
	slices.SortFunc(pods, netip.Addr.Compare)
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
			if route.Prefix.Bits() == 0 || len(route.NextHops) == 0 || !r.Pods && !toNode && !ranges.LookupPrefix(route.Prefix) {
				continue
			}
			first, _ := slices.BinarySearchFunc(pods, route.Prefix.Masked().Addr(), netip.Addr.Compare)
			if first == len(pods) || !route.Prefix.Contains(pods[first]) {
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
