package detect

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Index has snapshots in order of time, and what is computed of them once for all detectors. It is for one goroutine.
type Index struct {
	history  []snapshot.Snapshot
	routings map[routerOf]*routing
	digests  map[string]string // by image ID
}

// routerOf is a router's name, and the index of the snapshot that it is in.
type routerOf struct {
	name     string
	snapshot int
}

// NewIndex is of snapshots in order of time, as Run takes them.
func NewIndex(history []snapshot.Snapshot) *Index {
	return &Index{history, map[routerOf]*routing{}, map[string]string{}}
}

// Run returns the findings of detectors at the last of the snapshots, in their order; none without
// a snapshot. Each detector gets only the sources that it reads, so that its findings do not depend
// on what else the snapshots have.
func (x *Index) Run(detectors []Detector) []Finding {
	var findings []Finding
	for _, d := range detectors {
		if len(x.history) == 0 {
			return nil
		}
		for _, f := range d.Detect(snapshot.Only(x.history, d.Reads()...), x) {
			f.Detector = d.Name()
			findings = append(findings, f)
		}
	}
	return findings
}

func (x *Index) routing(i int, r snapshot.Router) *routing {
	key := routerOf{r.Name, i}
	if x.routings[key] == nil {
		x.routings[key] = newRouting(r)
	}
	return x.routings[key]
}

func (x *Index) pulled(c snapshot.RunningContainer) string {
	digest, found := x.digests[c.ImageID]
	if !found {
		digest = c.Pulled()
		x.digests[c.ImageID] = digest
	}
	return digest
}

// views are what a detector sees of each snapshot, made when it is first asked for.
type views []func() *view

func newViews(history []snapshot.Snapshot, x *Index, p Peering) views {
	all := make(views, len(history))
	for i := range history {
		all[i] = sync.OnceValue(func() *view {
			return newView(history[i], p, func(r snapshot.Router) *routing { return x.routing(i, r) })
		})
	}
	return all
}

func (vs views) now() *view { return vs[len(vs)-1]() }

type view struct {
	*lookup
	peering Peering
	// intended are the pod ranges. rangesKnown is true if the objects that decide them were read.
	intended
	rangesKnown bool
	nodes       map[string]snapshot.Node
	// addresses are the InternalIPs of Nodes, and where peering is observed other addresses that
	// they have sessions from.
	addresses map[netip.Addr]string
	// allocations are the nodes that have a range in Node.spec.podCIDRs.
	allocations map[netip.Prefix]string
	// routers are in the order of the snapshot. own are the routers' addresses, true in below unless the router is a
	// spine. nodeAS are the AS numbers of neighbours that are nodes.
	routers    []*router
	own, below map[netip.Addr]bool
	nodeAS     map[uint32]bool
	// services, by namespace/name, and the rest are made when they are first asked for.
	services       func() map[string]service
	intents        func() intents
	learned        func() map[poolOf]bool // the pools of ranges that a router has learned by BGP
	advertisements func() []advertisement
}

func newView(s snapshot.Snapshot, p Peering, routingOf func(snapshot.Router) *routing) *view {
	v := &view{
		lookup: newLookup(s), nodes: map[string]snapshot.Node{}, addresses: map[netip.Addr]string{}, allocations: map[netip.Prefix]string{},
		own: map[netip.Addr]bool{}, below: map[netip.Addr]bool{}, nodeAS: map[uint32]bool{}, peering: p,
	}
	v.intended, v.rangesKnown = podRanges(s, p)
	v.rangesKnown = v.rangesKnown && (p == Declared || unknownRanges(s, v.intended) == "")
	for _, n := range s.Nodes.Items {
		v.nodes[n.Name] = n
		for _, a := range n.InternalIPs {
			v.addresses[a] = n.Name
		}
		for _, p := range n.PodCIDRs {
			v.allocations[p] = cmp.Or(v.allocations[p], n.Name)
		}
	}
	if p == Observed {
		for _, n := range s.Nodes.Items {
			for _, a := range slices.Concat(n.KubeRouterAddresses, []netip.Addr{n.Calico.Address.Addr()}) {
				if a.IsValid() {
					v.addresses[a] = cmp.Or(v.addresses[a], n.Name)
				}
			}
		}
	}
	for _, r := range s.Routers {
		entry := newRouter(v, v.addressed(r), routingOf)
		v.routers = append(v.routers, entry)
		maps.Copy(v.nodeAS, entry.nodeAS)
		for _, f := range r.Routes.Items {
			if f.Protocol == snapshot.RouteKernel && f.Source.IsValid() {
				v.own[f.Source], v.below[f.Source] = true, r.Role != snapshot.RoleSpine
			}
		}
	}
	v.intents = sync.OnceValue(func() intents { return intentsOf(s) })
	v.learned = sync.OnceValue(func() map[poolOf]bool {
		all := map[poolOf]bool{}
		for p := range v.origins.All() {
			if pool := v.poolOf(p); !all[pool] {
				all[pool] = slices.ContainsFunc(v.routers, func(r *router) bool { return r.routing().learned(p) })
			}
		}
		return all
	})
	v.services = sync.OnceValue(func() map[string]service { return servicesOf(s) })
	v.advertisements = sync.OnceValue(func() []advertisement { return advertisementsOf(s) })
	return v
}

// addressed is a router with nodes' addresses in place of the link-local addresses of neighbours on interfaces (BGP
// unnumbered). The neighbour's router ID tells the node's address.
func (v *view) addressed(r snapshot.Router) snapshot.Router {
	by := map[netip.Addr]netip.Addr{}
	for _, n := range r.Neighbors.Items {
		if n.Address.IsLinkLocalUnicast() && v.addresses[n.RouterID] != "" {
			if other, there := by[n.Address]; there && other != n.RouterID {
				return r // the address does not tell which
			}
			by[n.Address] = n.RouterID
		}
	}
	if len(by) == 0 {
		return r
	}
	r.Neighbors.Items, r.Paths.Items = slices.Clone(r.Neighbors.Items), slices.Clone(r.Paths.Items)
	r.Routes.Items = slices.Clone(r.Routes.Items)
	for i, n := range r.Neighbors.Items {
		r.Neighbors.Items[i].Address = cmp.Or(by[n.Address], n.Address)
	}
	for i, p := range r.Paths.Items {
		r.Paths.Items[i].Neighbor, r.Paths.Items[i].NextHop = cmp.Or(by[p.Neighbor], p.Neighbor), cmp.Or(by[p.NextHop], p.NextHop)
	}
	for i, f := range r.Routes.Items {
		r.Routes.Items[i].NextHops = slices.Clone(f.NextHops)
		for j, h := range f.NextHops {
			r.Routes.Items[i].NextHops[j].Address = cmp.Or(by[h.Address], h.Address)
		}
	}
	return r
}

func (v *view) router(name string) (*router, bool) {
	return each.First(v.routers, func(r *router) bool { return r.Name == name })
}

type router struct {
	snapshot.Router
	routing func() *routing
	// peers are the nodes that are BGP neighbours, in any state, and sessions the oldest
	// established session with each.
	peers    map[string]bool
	from     map[string][]netip.Addr // addresses of nodes that are neighbours
	sessions map[string]snapshot.Neighbor
	// ended are the neighbours whose session is not up, filters the nodes whose prefixes a filter may refuse without
	// counting them.
	ended   map[netip.Addr]bool
	filters map[string]bool
	// down is set if a session with a node is not up, or any session if no neighbour is a node. rejects are the nodes
	// from which the router gets more prefixes than it accepts.
	down    bool
	rejects map[string]bool
	// untold are the nodes whose session may be up or not: the router does not tell, as in a table dump.
	untold map[string]bool
	// as has the AS of each neighbour, nodeAS the AS numbers of neighbours that are nodes.
	as     map[netip.Addr]uint32
	nodeAS map[uint32]bool
	// leads are the ways of BGP that lead to each node.
	leads    func() map[string][]*way
	families func() map[bool]*family
	// aggregates are the prefixes that a spine has learned and that include pod ranges.
	aggregates func() *bart.Table[aggregate]
	// farther are the families (true: IPv4) in which it has learned a range whose node is none of its neighbours.
	farther func() map[bool]bool
	strays  func() map[bool]bool
	// above are the neighbours and next hops that it has a default route from. Their other routes may come from
	// anywhere.
	above func() map[netip.Addr]bool
	// connected are the router's own links, links the ones with a node that is a BGP neighbour, nodeLinks the ones
	// with any node.
	connected, links, nodeLinks func() *bart.Lite
}

func newRouter(v *view, s snapshot.Router, routingOf func(snapshot.Router) *routing) *router {
	r := &router{
		Router: s, routing: func() *routing { return routingOf(s) },
		peers: map[string]bool{}, from: map[string][]netip.Addr{}, rejects: map[string]bool{}, sessions: map[string]snapshot.Neighbor{},
		ended: map[netip.Addr]bool{}, filters: map[string]bool{}, untold: map[string]bool{},
		as: map[netip.Addr]uint32{}, nodeAS: map[uint32]bool{},
	}
	for _, n := range s.Neighbors.Items {
		r.as[n.Address] = n.AS
		r.ended[n.Address] = n.State != snapshot.SessionEstablished && n.State != snapshot.SessionUnknown
		node := v.addresses[n.Address]
		if node == "" {
			continue
		}
		r.peers[node], r.nodeAS[n.AS] = true, true
		r.down = r.down || n.State != snapshot.SessionEstablished && v.nodes[node].Ready
		r.rejects[node] = r.rejects[node] || n.Received > n.Accepted
		r.filters[node] = r.filters[node] || n.MayReject
		r.from[node] = append(r.from[node], n.Address)
		r.untold[node] = r.untold[node] || n.State == snapshot.SessionUnknown
		if oldest, up := r.sessions[node]; n.State == snapshot.SessionEstablished && (!up || n.Established.Before(oldest.Established)) {
			r.sessions[node] = n
		}
	}
	r.down = r.down || len(r.peers) == 0 && slices.ContainsFunc(s.Neighbors.Items, func(n snapshot.Neighbor) bool {
		return n.State != snapshot.SessionEstablished
	})
	r.farther = sync.OnceValue(func() map[bool]bool {
		families := map[bool]bool{}
		for p := range v.origins.All() {
			if node, _ := v.owner(p); !families[p.Addr().Is4()] && !r.peers[node] && r.routing().learned(p) {
				families[p.Addr().Is4()] = true
			}
		}
		return families
	})
	r.strays = sync.OnceValue(func() map[bool]bool { return v.strays(r) })
	r.leads = sync.OnceValue(func() map[string][]*way {
		leads := map[string][]*way{}
		for _, w := range r.routing().ways {
			if node := cmp.Or(v.addresses[w.nextHop], v.addresses[w.neighbor]); node != "" && w.protocol == snapshot.RouteBGP {
				leads[node] = append(leads[node], w)
			}
		}
		return leads
	})
	r.families = sync.OnceValue(func() map[bool]*family { return v.familiesOf(r) })
	r.aggregates = sync.OnceValue(func() *bart.Table[aggregate] { return v.aggregatesOf(r) })
	r.above = sync.OnceValue(func() map[netip.Addr]bool { return defaultHops(s) })
	r.connected = sync.OnceValue(func() *bart.Lite { return connectedOf(s) })
	r.nodeLinks = sync.OnceValue(func() *bart.Lite { return r.linksWith(maps.Keys(v.addresses)) })
	r.links = sync.OnceValue(func() *bart.Lite {
		return r.linksWith(slices.Values(slices.Concat(slices.Collect(maps.Values(r.from))...)))
	})
	return r
}

func defaultHops(s snapshot.Router) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, p := range s.Paths.Items {
		if p.Prefix.Bits() == 0 {
			all[p.NextHop], all[p.Neighbor] = true, true
		}
	}
	for _, f := range s.Routes.Items {
		for _, h := range f.NextHops {
			if f.Prefix.Bits() == 0 {
				all[h.Address] = true
			}
		}
	}
	return all
}

func (r *router) linksWith(addresses iter.Seq[netip.Addr]) *bart.Lite {
	var links bart.Lite
	for a := range addresses {
		for p := range r.connected().Supernets(netip.PrefixFrom(a, a.BitLen())) {
			links.Insert(p)
		}
	}
	return &links
}

// family is what nodes announce to a router by BGP, of IPv4 or of IPv6: pods are the nodes that announce pod ranges,
// others the nodes that announce other prefixes.
type family struct {
	pods, others map[string]bool
	crossed      bool // some prefix is announced over a session between addresses of the other family
}

func (v *view) familiesOf(r *router) map[bool]*family { // by whether it is IPv4
	families := map[bool]*family{}
	for _, is4 := range []bool{true, false} {
		families[is4] = &family{pods: map[string]bool{}, others: map[string]bool{}}
	}
	for node, ways := range r.leads() {
		for _, w := range ways {
			for p := range r.routing().by(w) {
				all := families[p.Addr().Is4()]
				all.crossed = all.crossed || w.neighbor.IsValid() && w.neighbor.Is4() != p.Addr().Is4() && v.addresses[w.neighbor] != ""
				if v.ofPods(p) {
					all.pods[node] = true
				} else {
					all.others[node] = true
				}
			}
		}
	}
	return families
}

func (r *router) family(p netip.Prefix) *family { return r.families()[p.Addr().Is4()] }

// ofPods reports whether a prefix is a pod range of the cluster, or a part of one.
func (v *view) ofPods(p netip.Prefix) bool {
	_, owned := v.owner(p)
	return owned || v.allocations[p] != ""
}

// covered reports whether a router reaches a range: by a route to exactly that
// range, unless it discards packets or leads to a stranger, or by a wider one that leads to a node. A wider
// route that leads elsewhere, such as a spine's aggregate, does not bring
// packets to pods, except on the spine.
func (v *view) covered(r *router, p netip.Prefix) bool {
	exact := false
	for w := range r.routing().used(p) {
		if exact = true; !v.stranger(r, w) {
			return true
		}
	}
	if _, decided := r.routing().decided[p]; exact || decided {
		return false
	}
	for q, w := range r.routing().over(p) {
		if q != p && v.addresses[w.nextHop] != "" && r.routing().uses(q, w) {
			return true
		}
	}
	brings, _ := v.aggregated(r, p)
	return brings
}

// stranger reports whether a route that the operator has added leads to an address on a link of nodes that is
// of no node, no router, and no BGP neighbour: a machine that was taken away, perhaps.
func (v *view) stranger(r *router, w *way) bool {
	_, neighbor := r.as[w.nextHop]
	return w.protocol != snapshot.RouteBGP && w.nextHop.IsValid() && v.addresses[w.nextHop] == "" && !neighbor && !v.own[w.nextHop] &&
		r.nodeLinks().Contains(w.nextHop)
}
