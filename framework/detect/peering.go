package detect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Peering is how a detector knows which routers are expected to have the ranges and addresses
// that a cluster's nodes announce.
type Peering int

const (
	// Declared: each router that is read, of each node, as in a lab. Its topology says that
	// the routers are the nodes' peers.
	Declared Peering = iota
	// Observed: by what is seen, for a cluster and routers of which nobody says that they are
	// peers. A router is expected to have the range of a node only if
	//
	//   - it has learned a pod range of this cluster by BGP, from any of its nodes. Otherwise
	//     the cluster does not announce pod ranges to it: it has an overlay (Flannel, Cilium
	//     without BGP), or announces Services alone (MetalLB, Cilium).
	//   - the node is one of its BGP neighbours, whether the session is up or not. Otherwise
	//     it is another rack's, or has no BGP. A router that accepts neighbours from a range
	//     of addresses forgets one whose session is down: on a link where other nodes are
	//     neighbours this is left open (Gap).
	//   - the node announces to it no other prefixes alone: it would be one of the nodes that
	//     announce Services only.
	//   - the node is ready. That of another is gone, or goes.
	//   - it has none of the node's ranges. One of several may be of a pool that is not
	//     announced.
	//
	// The same rule holds for every CNI. It goes by routes, and not by the CNI's own objects
	// (Calico's BGPPeers, Cilium's policies and advertisements), because those say which
	// peers a node has, and not which of the routers that are read these are. Its price is
	// that a router to which no node announces anything is not judged: Unjudged says so, and
	// where that may be a fault (Gap.Open).
	//
	// A route to a node that does not own the range counts only where there is none to the
	// owner: nodes with a mesh (Calico) announce each other's ranges as well.
	//
	// An unknown neighbour in the nodes' AS counts as a node that was removed only by a route
	// to a pod range of this cluster: it may be a node of another one. A Service needs a route
	// on some router only if a node that announces it is a neighbour of one, and a route that
	// leads anywhere will do, because the node that announces it may be in another rack.
	Observed
)

// Reasons why a router is not expected to have a node's range.
const (
	notIPv6       = "its routes of IPv6 were not read"
	noNeighbors   = "its BGP neighbours were not read"
	notReady      = "the node is not ready"
	noPodRange    = "no node announces a pod range of this cluster to it"
	noPodRangeV6  = "no node announces a pod range of IPv6 of this cluster to it"
	noNeighbor    = "the node is none of its BGP neighbours"
	noLinks       = "the node is none of its BGP neighbours, and without its FIB it is not known which nodes are on its links"
	noSession     = "the node has no BGP session on its link, where other nodes have, and may have none by intent"
	otherPrefixes = "the node announces to it other prefixes alone"
	noAggregate   = "it is a spine, and no aggregate that it has learned includes them"
	anotherRange  = "it has another range of the node"
)

// announcers are the nodes that announce something to a router by BGP.
type announcers struct {
	pods, others map[string]bool
	// aggregates is set if a spine has learned a prefix that includes a pod range.
	aggregates bool
}

// aggregate reports whether a route to a wider prefix than a pod range brings packets to the
// pods: one that a spine has learned.
func aggregate(r snapshot.Router, a announcement) bool {
	return r.Role == snapshot.RoleSpine && a.protocol == snapshot.RouteBGP
}

// announcersTo are those of a router, with the prefixes of one family: that of p. They are sorted
// once.
func (v *view) announcersTo(r snapshot.Router, p netip.Prefix) announcers {
	name := fmt.Sprint(r.Name, " ", p.Addr().BitLen())
	all, made := v.announcers[name]
	if made {
		return all
	}
	all = announcers{pods: map[string]bool{}, others: map[string]bool{}}
	ranges := slices.SortedFunc(maps.Keys(v.origins), comparePrefixes)
	for _, a := range v.announcements(r) {
		if i, _ := slices.BinarySearchFunc(ranges, a.prefix.Masked(), comparePrefixes); aggregate(r, a) && i < len(ranges) {
			all.aggregates = all.aggregates || contains(a.prefix, ranges[i])
		}
		from := cmp.Or(v.addresses[a.nextHop], v.addresses[a.neighbor])
		if a.protocol != snapshot.RouteBGP || from == "" || !sameFamily(a.prefix, p) {
			continue
		}
		to := all.others
		if _, owned := v.owner(a.prefix); owned || v.allocated(a.prefix) != "" {
			to = all.pods
		}
		to[from] = true
	}
	v.announcers[name] = all
	return all
}

// sameFamily reports whether two prefixes are both of IPv4, or both of IPv6.
func sameFamily(p, q netip.Prefix) bool { return p.Addr().BitLen() == q.Addr().BitLen() }

// unexpected returns why a router is not expected to have a range of a node; empty if it is.
func (v *view) unexpected(r snapshot.Router, node string, p netip.Prefix) string {
	if v.peering == Declared {
		return ""
	}
	announce := v.announcersTo(r, p)
	another := func(q netip.Prefix) bool {
		return q != p && sameFamily(p, q) && v.owns(node, q) && v.covered(r, q)
	}
	switch {
	case !p.Addr().Is4() && !r.IPv6:
		return notIPv6
	case r.Role == snapshot.RoleSpine:
		return noAggregate
	case !r.Neighbors.Read:
		return noNeighbors
	case len(announce.pods) == 0 && !p.Addr().Is4():
		return noPodRangeV6
	case len(announce.pods) == 0:
		return noPodRange
	case !v.neighbors(r, node) && v.amongNeighbors(r, node):
		return noSession
	case !v.neighbors(r, node) && r.RIBOnly:
		return noLinks
	case !v.neighbors(r, node):
		return noNeighbor
	case !v.nodes[node].Ready:
		return notReady
	case announce.others[node] && !announce.pods[node]:
		return otherPrefixes
	case slices.ContainsFunc(slices.Collect(maps.Keys(v.origins)), another):
		return anotherRange
	}
	return ""
}

// open reports whether a range that a router is not expected to have may be missing by a fault.
func (v *view) open(r snapshot.Router, p netip.Prefix, why string) bool {
	switch why {
	case notIPv6: // a range that its node has besides one of IPv4 goes the same way
		node := v.origins[p][0].node
		return !slices.ContainsFunc(slices.Collect(maps.Keys(v.origins)), func(q netip.Prefix) bool { return q.Addr().Is4() && v.owns(node, q) })
	case noNeighbors, notReady, noSession, noLinks:
		return true
	case noNeighbor:
		return false
	case noAggregate:
		// A cluster that announces no pod ranges has none on any router.
		return !r.Neighbors.Read ||
			slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool { return n.State != snapshot.SessionEstablished }) ||
			slices.ContainsFunc(v.Routers, func(o snapshot.Router) bool {
				return v.announcersTo(o, p).aggregates || len(v.announcersTo(o, p).pods) > 0
			})
	case noPodRange, noPodRangeV6:
		// A cluster that announces no pod ranges has its sessions up, or none.
		return slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool {
			return v.addresses[n.Address] != "" && n.State != snapshot.SessionEstablished
		})
	}
	// Nodes may announce Services alone, and pools may be meant to stay inside. Pods that no
	// router reaches may be meant so as well, or not.
	pods := slices.ContainsFunc(v.Pods.Items, func(pod snapshot.Pod) bool { return p.Contains(pod.IP) })
	return pods && !slices.ContainsFunc(v.Routers, func(o snapshot.Router) bool { return v.covered(o, p) })
}

// unknownRanges returns why the pod ranges of a cluster are not known (Observed), though all
// that decides them was read: its CNI allocates by objects that are not read. Empty: they are.
func unknownRanges(s snapshot.Snapshot, i intended) string {
	calico := slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool { return n.Calico.Address.IsValid() })
	switch {
	case i.layer == nodeLayer && calico:
		return "calico-node runs, and there is no IPAMBlock"
	case len(i.origins) > 0:
		return ""
	case i.layer == ciliumLayer:
		return "no CiliumNode has one in spec.ipam.podCIDRs"
	}
	return "neither CiliumNodes, nor IPAMBlocks, nor Nodes have any"
}

// neighbors reports whether a node is a BGP neighbour of a router, in any state.
func (v *view) neighbors(r snapshot.Router, node string) bool {
	return slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool { return v.addresses[n.Address] == node })
}

// amongNeighbors reports whether a node is on a link of a router on which another node is a BGP
// neighbour.
func (v *view) amongNeighbors(r snapshot.Router, node string) bool {
	return slices.ContainsFunc(r.Routes.Items, func(f snapshot.Route) bool {
		link := f.Protocol == snapshot.RouteKernel && f.Type == snapshot.RouteUnicast && f.Prefix.Bits() > 0
		return link && slices.ContainsFunc(v.nodes[node].InternalIPs, f.Prefix.Contains) &&
			slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool {
				return v.addresses[n.Address] != "" && f.Prefix.Contains(n.Address)
			})
	})
}

// Gap is what is not judged by the routes that a router lacks.
type Gap struct {
	// Says is one sentence.
	Says string `json:"says"`
	// Open is set if it may be a fault.
	Open bool `json:"open"`
}

// few are the first of some names, and how many more there are.
func few(names []string) []string {
	if more := len(names) - maxNamed; more > 0 {
		return append(names[:maxNamed:maxNamed], fmt.Sprintf("%d more", more))
	}
	return names
}

// blindness says what is not seen of routers by the way in which they are read. Without a FIB it
// is open: a route that the operator has added may lead to the wrong node.
func blindness(routers []snapshot.Router) (all []Gap) {
	var names []string
	for _, r := range routers {
		for _, remark := range r.Remarks {
			all = append(all, Gap(remark))
		}
		if r.RIBOnly && r.Role != snapshot.RoleRouteServer {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return all
	}
	return append(all, Gap{fmt.Sprintf("The FIB of %s is not read: static routes, and routes of the RIB that the kernel has not, are not seen there.", and(names)), true})
}

// elsewhere are the nodes of whose routes a router has accepted some, and of whose routes its RIB
// has none: they are in a table that is not read. BIRD has any number, GoBGP keeps the routes of
// the clients of a route server apart, and a VRF has its own.
func (v *view) elsewhere(r snapshot.Router) (nodes []string) {
	for _, n := range r.Neighbors.Items {
		node := v.addresses[n.Address]
		if r.Paths.Read && node != "" && n.State == snapshot.SessionEstablished && n.Accepted > 0 &&
			!slices.ContainsFunc(r.Paths.Items, func(p snapshot.Path) bool { return p.Neighbor == n.Address }) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// Unjudged returns what is not judged (Observed): what the way in which routers are read leaves
// unseen, and what routers lack without being expected to have it: addresses of Services, and
// pod ranges, one gap for each router and reason.
func Unjudged(s snapshot.Snapshot) []Gap {
	if len(s.Routers) == 0 {
		return nil
	}
	var all []Gap
	if addresses := (ServiceRoute{Peering: Observed}).unjudged(s); len(addresses) > 0 {
		all = append(all, Gap{fmt.Sprintf("No router has a route to %s of Services, and that is not judged, because no node that announces it is a BGP neighbour of one, or its advertisement names the peers that are told.", and(few(addresses))), true})
	}
	if addresses, open := (ServiceRoute{Peering: Observed}).unasked(s); len(addresses) > 0 {
		all = append(all, Gap{fmt.Sprintf("Routes to %s of Services are not judged, because the routes of IPv6 of a router were not read.", and(few(addresses))), open})
	}
	all = append(all, blindness(s.Routers)...)
	v := newView(s, Observed)
	for _, r := range v.Routers {
		if nodes := v.elsewhere(r); len(nodes) > 0 {
			all = append(all, Gap{fmt.Sprintf("%s has accepted routes from %s, and its RIB has none from there: they are in a table that is not read, such as that of a VRF.", r.Name, and(few(nodes))), true})
		}
	}
	if ranges, read := podRanges(s); read && !v.known {
		return append(all, Gap{"Routes to pods are not judged, because the nodes' pod ranges are not known: " + unknownRanges(s, ranges) + ".", true})
	}
	if !v.known {
		return all
	}
	for _, r := range v.Routers {
		if !complete(r) {
			all = append(all, Gap{r.Name + " is not judged by the routes that it lacks, because its RIB or its FIB was not read.", true})
			continue
		}
		nodes, open := map[string][]string{}, map[string]bool{} // by reason
		for p, origins := range v.origins {
			node := origins[0].node
			if _, there := v.nodes[node]; there && !v.covered(r, p) {
				if why := v.unexpected(r, node, p); why != "" {
					nodes[why] = append(nodes[why], node)
					open[why] = open[why] || v.open(r, p, why)
				}
			}
		}
		for _, why := range slices.Sorted(maps.Keys(nodes)) {
			on := few(slices.Compact(slices.Sorted(slices.Values(nodes[why]))))
			all = append(all, Gap{fmt.Sprintf("%s has no route to pod ranges of %s, and is not judged by that: %s.", r.Name, and(on), why), open[why]})
		}
	}
	return all
}
