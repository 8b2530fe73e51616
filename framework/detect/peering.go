package detect

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Peering is how a detector knows which routers are expected to have the ranges and addresses
// that a cluster's nodes announce.
type Peering int

const (
	// Declared: each router that is read, of each node, as in a lab. Its topology says that
	// the routers are the nodes' peers.
	Declared Peering = iota
	// Observed: the routes decide, because nobody says which routers are the nodes' peers. A router is expected to
	// have a node's range if it has learned a pod range of this cluster by BGP, if the node is ready, is its
	// neighbour and announces pod ranges, and if the CNI's own objects do not keep the range back; the reasons below
	// are the exceptions. Less is asked of a router if an operator has said what it gets (snapshot.Router.Pods,
	// Services). A spine has the range inside an aggregate that it has learned from the cluster.
	//
	// The same rule holds for every CNI. It goes by routes first: objects say which peers a node has, but not which
	// of the routers are these peers. Its price: a router to which no node announces anything is not judged. Unjudged
	// says so, and whether that may be a fault (Gap.Open).
	//
	// A route to a node that does not own the range counts only if there is no route to the owner: nodes with a mesh
	// (Calico) announce each other's ranges as well. An unknown neighbour in the nodes' AS may be a node of another
	// cluster, so it counts as a removed node only for a route to a pod range of this cluster. A Service needs a
	// route on some router only if a node that announces it is a neighbour of a router. It may lead anywhere, because
	// that node may be in another rack.
	Observed
)

// Reasons why a router is not expected to have a node's range.
const (
	notIPv4       = "its routes of IPv4 were not read"
	notIPv6       = "its routes of IPv6 were not read"
	noNeighbors   = "its BGP neighbours were not read"
	notReady      = "the node is not ready"
	noPodRange    = "no node announces a pod range of this cluster to it"
	noPodRangeV6  = "no node announces a pod range of IPv6 of this cluster to it"
	noNeighbor    = "the node is none of its BGP neighbours"
	noLinks       = "the node is none of its BGP neighbours, and without its FIB it is not known which nodes are on its links"
	noSession     = "the node has no BGP session on its link, where other nodes have, and may have none by intent"
	noFamily      = "the node has no BGP session with it between addresses of that family, where other nodes have"
	otherPrefixes = "the node announces to it other prefixes alone"
	tooOld        = "its table dump is older than the node's claim to them"
	noAggregate   = "it is a spine, and no aggregate that it has learned includes them"
	fromAbove     = "it is a spine, and neither AS path nor next hop of the aggregate that includes them says that it comes from the cluster"
	anotherRange  = "it has a range of the node of another pool"
	notCarried    = "the file of routers says that it has no routes of that family"
	servicesAlone = "the file of routers says that it gets addresses of Services alone"
	rejected      = "it accepts fewer prefixes of the node than it gets"
	mayReject     = "it has a filter for what the node announces, and does not count what that refuses"
)

const (
	noFIB        = "its FIB is not read"
	notRead      = "its RIB or its FIB was not read"
	anotherTable = "its routes are in a table that is not read"
	anotherVRF   = "a VRF is not read"
	otherPeers   = "no BGP neighbour is known to announce them"
	notFamily    = "routes of their family were not read"
)

// aggregate is a prefix that a spine has learned by BGP, which includes pod ranges.
type aggregate struct {
	// cluster is set if a path to it comes from the cluster: by way of a node or of another
	// router that is read, or with the nodes' AS in its AS path.
	cluster  bool
	nextHops []netip.Addr
}

func (v *view) aggregatesOf(r *router) *bart.Table[aggregate] {
	all := &bart.Table[aggregate]{}
	if r.Role != snapshot.RoleSpine {
		return all
	}
	for _, w := range r.routing().ways {
		if w.protocol != snapshot.RouteBGP {
			continue
		}
		for path := range r.routing().paths(w) {
			if !v.includesRange(path.Prefix) || !path.Best && !path.Multipath {
				continue
			}
			all.Modify(path.Prefix, func(a aggregate, _ bool) (aggregate, bool) {
				a.cluster = a.cluster || v.fromCluster(r, w, path)
				a.nextHops = append(a.nextHops, w.nextHop)
				return a, false
			})
		}
	}
	return all
}

// fromCluster reports whether a path that a router has learned comes from the cluster: by way of a node
// or of another router that is read, or with the nodes' AS in its AS path, and not from above, where
// others may have that AS.
func (v *view) fromCluster(r *router, w *way, path *snapshot.Path) bool {
	return v.peering == Declared || v.addresses[w.nextHop] != "" || v.below[w.nextHop] || v.below[w.neighbor] ||
		!r.above()[w.neighbor] && !r.above()[w.nextHop] && slices.ContainsFunc(path.ASPath, func(as uint32) bool { return v.nodeAS[as] })
}

// aggregated reports whether the narrowest aggregate of a spine that includes a pod range brings packets to its pods:
// it comes from the cluster, or leads where the narrower route to the node does. An aggregate from above, such as
// 10.0.0.0/8, need not. There is false if no aggregate includes the range.
func (v *view) aggregated(r *router, p netip.Prefix) (brings, there bool) {
	prefix, a, there := r.aggregates().LookupPrefixLPM(p)
	if !there || a.cluster {
		return there, there
	}
	for _, o := range v.owners(p) {
		for _, address := range v.nodes[o.node].InternalIPs {
			var narrowest netip.Prefix
			for q, w := range r.routing().over(netip.PrefixFrom(address, address.BitLen())) {
				if narrowest.IsValid() && q != narrowest || q == prefix || q.Bits() < prefix.Bits() {
					break // a wider one may come from above as well
				}
				if narrowest = q; slices.Contains(a.nextHops, w.nextHop) {
					return true, true
				}
			}
		}
	}
	return false, true
}

// announcesPods reports whether the cluster announces pod ranges of the family of p, as far as
// routers tell.
func (v *view) announcesPods(p netip.Prefix) bool {
	return slices.ContainsFunc(v.routers, func(r *router) bool { return v.hasPodsOf(r, p) })
}

// otherFamily reports whether routers have learned pod ranges of the other family, and none of the family of p:
// perhaps no node announces that family, by intent.
func (v *view) otherFamily(p netip.Prefix) bool {
	other := ipv4
	if p.Addr().Is4() {
		other = ipv6
	}
	return !v.announcesPods(p) && v.announcesPods(other)
}

// hasPodsOf reports whether a router has learned a pod range of the family of p, or as a spine an
// aggregate from the cluster.
func (v *view) hasPodsOf(r *router, p netip.Prefix) bool {
	if len(r.family(p).pods) > 0 {
		return true
	}
	for q, a := range r.aggregates().All() {
		if a.cluster && sameFamily(p, q) {
			return true
		}
	}
	return false
}

// includesRange reports whether a prefix is a pod range of the cluster, or a wider one.
func (v *view) includesRange(p netip.Prefix) bool {
	for range v.origins.Subnets(p) {
		return true
	}
	return false
}

func sameFamily(p, q netip.Prefix) bool { return p.Addr().BitLen() == q.Addr().BitLen() }

// unexpected returns why a router is not expected to have a range of a node; empty if it is.
func (v *view) unexpected(r *router, node string, p netip.Prefix) string {
	if v.peering == Declared {
		return ""
	}
	announce := r.family(p)
	another := func(q netip.Prefix) bool {
		return q != p && sameFamily(p, q) && v.poolsDiffer(p, q) && v.covered(r, q)
	}
	declared, withheld := v.declared(node, p)
	strays := func(r *router) bool { return r.strays()[p.Addr().Is4()] }
	if leftOut(withheld) && (strays(r) || r.Pods && slices.ContainsFunc(v.routers, strays)) {
		withheld = ""
	}
	switch {
	case r.Services:
		return servicesAlone
	case !r.Carries(p.Addr()):
		return notCarried
	case withheld != "":
		return withheld
	case p.Addr().Is4() && !r.readFor(p.Addr()):
		return notIPv4
	case !r.readFor(p.Addr()):
		return notIPv6
	case r.Role == snapshot.RoleSpine:
		if _, there := v.aggregated(r, p); there {
			return fromAbove
		}
		return noAggregate
	case !r.Neighbors.Read:
		return noNeighbors
	case !r.At.IsZero() && slices.ContainsFunc(v.owners(p), func(o origin) bool { return o.node == node && o.since.After(r.At) }):
		return tooOld
	case r.Pods && !v.nodes[node].Ready:
		return notReady
	case r.Pods && (declared || len(r.Families) > 0 || !v.otherFamily(p)):
		return ""
	case (r.Pods || len(announce.pods) == 0) && !p.Addr().Is4():
		return noPodRangeV6
	case r.Pods || len(announce.pods) == 0:
		return noPodRange
	case !v.nodes[node].Ready:
		return notReady
	case !r.peers[node] && r.amongNeighbors(v.nodes[node]):
		return noSession
	case !r.peers[node] && r.RIBOnly:
		return noLinks
	case !r.peers[node]:
		return noNeighbor
	case !r.carries(node, p):
		return noFamily
	case p.Addr().Is4() && r.rejects[node]: // of IPv6 nothing is counted
		return rejected
	case p.Addr().Is4() && r.filters[node]:
		return mayReject
	case declared:
		return ""
	case announce.others[node] && !announce.pods[node] && v.speaksForOthers(node):
		return otherPrefixes
	case slices.ContainsFunc(v.ranges[node], another):
		return anotherRange
	}
	return ""
}

// open reports whether a range that a router is not expected to have may be missing by a fault.
func (v *view) open(r *router, p netip.Prefix, why string) bool {
	node, _ := v.owner(p)
	switch why {
	case notAdvertised:
		return v.lostAdvertisement(node, p)
	case notSelected, noPeer: // the router knows better, or a selector has lost its nodes
		return v.intents().idle[why] || why == noPeer && v.lostReflection(node, p) ||
			slices.ContainsFunc(r.from[node], func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
	case notReady:
		// It is down, as Kubernetes says, unless it is still there for a router.
		_, up := r.sessions[node]
		return up || r.untold[node] || v.somewhere(p)
	case notIPv6:
		// A cluster that announces its ranges of IPv4 should announce its ranges of IPv6 as well. If another router
		// has this range, it is announced.
		ranged := slices.ContainsFunc(v.ranges[node], func(q netip.Prefix) bool { return q.Addr().Is4() })
		return !v.somewhere(p) && (v.announcesPods(ipv4) || !ranged)
	case notIPv4, noNeighbors, noSession, noFamily, noLinks, rejected, mayReject, tooOld:
		return true
	case noAggregate, fromAbove:
		// A cluster that announces no pod ranges has none on any router: a router that is no spine shows that.
		return !r.Neighbors.Read ||
			slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool { return n.State != snapshot.SessionEstablished }) ||
			v.announcesPods(p) || !slices.ContainsFunc(v.routers, func(o *router) bool {
			return o.Role != snapshot.RoleSpine && len(o.peers) > 0 && complete(o.Router) && o.Neighbors.Read && o.readFor(p.Addr())
		})
	case noPodRange, noPodRangeV6:
		// A cluster that announces no pod ranges has all its sessions up, or has no sessions. If it is to announce
		// them, another router gets them, or objects say so. A router beside the node may lack what another router
		// has by intent, or by a fault.
		declared, _ := v.declared(node, p)
		announced := v.somewhere(p) || declared || p.Addr().Is4() && r.rejects[node] || why == noPodRangeV6 && len(r.family(ipv4).pods) > 0
		announced = announced || v.layer == calicoLayer && v.intents().filtered || v.layer == nodeLayer && v.intents().nodeRanges
		return r.Pods || declared && !v.announcesPods(p) || r.down || r.farther()[p.Addr().Is4()] || v.intents().unselected[v.poolOf(p)] ||
			announced && r.beside(v.nodes[node])
	case noNeighbor:
		// A node of another rack is none of its neighbours, and its ranges may be behind an
		// aggregate. A router that has exact ranges of other racks, or a link of the node, may
		// have lost this one.
		return r.farther()[p.Addr().Is4()] || slices.ContainsFunc(v.nodes[node].InternalIPs, r.connected().Contains)
	case otherPrefixes, anotherRange:
		// Nodes may announce Services alone, and pools may be meant to stay inside. Pods that
		// the router does not reach may be meant so as well, or not.
		return len(v.podsIn(p)) > 0
	}
	return false
}

// unknownRanges returns why the pod ranges of a cluster are not known (Observed), though all
// that decides them was read: its CNI allocates by objects that are not read. Empty: they are.
func unknownRanges(s snapshot.Snapshot, i intended) string {
	calico := slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool { return n.Calico.Address.IsValid() })
	switch {
	case i.layer == nodeLayer && calico:
		return "calico-node runs, and there is no IPAMBlock"
	case i.origins.Size() > 0 && !i.used(s, false):
		return "most pods have addresses that are in no range of " + i.layer + "s"
	case i.origins.Size() > 0:
		return ""
	case i.layer == ciliumLayer:
		return "no CiliumNode has one in spec.ipam.podCIDRs or spec.ipam.pools.allocated"
	}
	return "neither CiliumNodes, nor IPAMBlocks, nor Nodes have any"
}

// amongNeighbors reports whether a node is on a link of a router on which another node is a BGP
// neighbour.
func (r *router) amongNeighbors(n snapshot.Node) bool {
	return slices.ContainsFunc(n.InternalIPs, r.links().Contains)
}

func (r *router) readFor(a netip.Addr) bool { return a.Is4() && !r.NoIPv4 || !a.Is4() && r.IPv6 }

// beside reports whether a node is a neighbour of a router, or on one of its links, or may be on one because the
// links are not known.
func (r *router) beside(n snapshot.Node) bool {
	return r.peers[n.Name] || r.RIBOnly && len(r.peers) == 0 || slices.ContainsFunc(n.InternalIPs, r.connected().Contains)
}

// carries reports whether a node has a BGP session with a router, up or down, that carries prefixes
// of the family of p: one between addresses of that family, or any where the router learns such
// prefixes over sessions of the other family.
func (r *router) carries(node string, p netip.Prefix) bool {
	return r.family(p).crossed ||
		slices.ContainsFunc(r.from[node], func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
}

// ipv4 and ipv6 stand for their families.
var (
	ipv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	ipv6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// Gap is what is not judged by the routes that a router lacks.
type Gap struct {
	// Says is one sentence.
	Says string `json:"says"`
	// Open is set if it may be a fault.
	Open bool `json:"open"`
	// Reason is why nothing is judged, and Routers are the routers concerned. Of are the nodes with the ranges, or
	// the Services' addresses, that are not judged, separated by ", ".
	Reason  string `json:"reason,omitempty"`
	Routers string `json:"routers,omitempty"`
	Of      string `json:"of,omitempty"`
}

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
			all = append(all, Gap{Says: remark.Says, Open: remark.Open, Reason: remark.Says, Routers: r.Name})
		}
		if r.RIBOnly && r.Role != snapshot.RoleRouteServer {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return all
	}
	return append(all, Gap{
		Says: fmt.Sprintf("The FIB of %s is not read: static routes, and routes of the RIB that the kernel has not, are not seen there.",
			and(names)),
		Open: true, Reason: noFIB, Routers: strings.Join(names, ", "),
	})
}

// elsewhere are the nodes from which a router has accepted routes that its RIB lacks: they are in a table that is not
// read. BIRD has any number of tables, GoBGP keeps the routes of a route server's clients apart, and a VRF has its
// own.
func (v *view) elsewhere(r *router) (nodes []string) {
	for _, n := range r.Neighbors.Items {
		node := v.addresses[n.Address]
		if r.Paths.Read && node != "" && n.State == snapshot.SessionEstablished && n.Accepted > 0 &&
			!slices.ContainsFunc(r.Paths.Items, func(p snapshot.Path) bool { return p.Neighbor == n.Address }) {
			nodes = append(nodes, node)
		}
	}
	return each.Once(nodes)
}

// Unjudged returns what is not judged of the last snapshot (Observed): what the way of reading routers leaves unseen,
// and the Services' addresses and pod ranges that routers lack without being expected to have them, as one gap for
// each router and reason.
func (x *Index) Unjudged() []Gap {
	s := x.history[len(x.history)-1]
	if len(s.Routers) == 0 {
		return nil
	}
	v := newViews(x.history, x, Observed).now()
	all := append(v.unjudgedServices(), blindness(s.Routers)...)
	for _, r := range v.routers {
		if nodes := v.elsewhere(r); len(nodes) > 0 {
			all = append(all, Gap{
				Says: fmt.Sprintf("%s has accepted routes from %s, and its RIB has none from there: they are in a table that is "+
					"not read, such as that of a VRF.", r.Name, and(few(nodes))),
				Open: true, Reason: anotherTable, Routers: r.Name, Of: strings.Join(nodes, ", "),
			})
		}
	}
	for _, r := range v.routers {
		if len(r.VRFs) > 0 {
			all = append(all, Gap{
				Says: fmt.Sprintf("%s has BGP in VRF %s, which is not read.", r.Name, and(few(r.VRFs))),
				Open: !r.Pods && !r.Services, Reason: anotherVRF, Routers: r.Name,
			})
		}
	}
	if _, read := podRanges(s, Observed); read && !v.rangesKnown {
		why := unknownRanges(s, v.intended)
		return append(all, Gap{
			Says: "Routes to pods are not judged, because the nodes' pod ranges are not known: " + why + ".", Reason: why,
			Open: slices.ContainsFunc(v.routers, func(r *router) bool { return !r.Services }),
		})
	}
	if !v.rangesKnown {
		return all
	}
	return append(all, slices.Concat(each.Of(v.routers, v.unjudgedRanges)...)...)
}

func (v *view) unjudgedServices() (all []Gap) {
	for _, gap := range []struct {
		addresses    []string
		says, reason string
	}{
		{v.unjudgedAddresses(), "No router has a route to %s of Services, and that is not judged, because no node that " +
			"announces it is a BGP neighbour of one, or its advertisement names the peers that are told, or it is younger than " +
			"a table dump, or an aggregate that may come from elsewhere includes it.", otherPeers},
		{v.unaskedAddresses(), "Routes to %s of Services are not judged, because the routes of their family were not read of a router.",
			notFamily},
	} {
		if len(gap.addresses) > 0 {
			all = append(all, Gap{Says: fmt.Sprintf(gap.says, and(few(gap.addresses))), Open: true, Reason: gap.reason,
				Of: strings.Join(gap.addresses, ", ")})
		}
	}
	return all
}

func (v *view) unjudgedRanges(r *router) (all []Gap) {
	if !complete(r.Router) {
		return []Gap{{Says: r.Name + " is not judged by the routes that it lacks, because its RIB or its FIB was not read.", Open: true,
			Reason: notRead, Routers: r.Name}}
	}
	nodes, open := map[string][]string{}, map[string]bool{} // by reason
	for p, origins := range v.origins.All() {
		node := origins[0].node
		if _, there := v.nodes[node]; there && !v.covered(r, p) {
			if why := v.unexpected(r, node, p); why != "" {
				nodes[why] = append(nodes[why], node)
				open[why] = open[why] || v.open(r, p, why)
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(nodes)) {
		on := each.Once(nodes[why])
		all = append(all, Gap{
			Says: fmt.Sprintf("%s has no route to pod ranges of %s, and is not judged by that: %s.", r.Name, and(few(on)), why),
			Open: open[why], Reason: why, Routers: r.Name, Of: strings.Join(on, ", "),
		})
	}
	return all
}
