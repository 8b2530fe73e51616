package detect

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// routing has a router's routes, by prefix and by where they lead: the paths in its RIB, and the operator's routes in
// its FIB, without default routes. A prefix without a best path is left out: the router cannot reach any of its next
// hops. If RIB or FIB was not read, routes may be missing.
type routing struct {
	router   snapshot.Router
	prefixes bart.Table[[]*way]
	ways     []*way // in the order of the router
	// sorted is set if the RIB is in order of prefix.
	sorted bool
	// decided are the prefixes for which the FIB has a route that is not from the RIB.
	decided map[netip.Prefix]decision
}

// decision is what a FIB does with packets for a prefix, whatever the RIB has.
type decision struct {
	metric int
	// ways are where it sends the packets; none: it discards them. With bgp they are the ways of the RIB.
	ways []*way
	bgp  bool
}

type way struct {
	hop
	// places are indices into the router's RIB, followed by its FIB: numbers, because there may be a million.
	places []int32
	// alone is the list of this way alone, which most prefixes have.
	alone []*way
}

type hop struct {
	// nextHop is where packets are sent, neighbor the peer that announced it.
	nextHop, neighbor netip.Addr
	// protocol is bgp, or the protocol of a route that the operator added.
	protocol snapshot.RouteProtocol
	// internal is true for a path learned over iBGP.
	internal bool
}

func newRouting(r snapshot.Router) *routing {
	unused := map[netip.Prefix]bool{} // without a best path
	for _, p := range r.Paths.Items {
		if !p.Best {
			unused[p.Prefix] = true
		}
	}
	for _, p := range r.Paths.Items {
		if p.Best && len(unused) > 0 {
			delete(unused, p.Prefix)
		}
	}
	t, byHop := &routing{router: r, sorted: true, decided: map[netip.Prefix]decision{}}, map[hop]*way{}
	var originated bart.Lite // by the router itself
	for i, p := range r.Paths.Items {
		t.sorted = t.sorted && (i == 0 || comparePrefixes(r.Paths.Items[i-1].Prefix, p.Prefix) <= 0)
		switch {
		case p.Prefix.Bits() <= 0 || unused[p.Prefix]:
		case !p.Neighbor.IsValid():
			originated.Insert(p.Prefix)
		default:
			t.add(byHop, i, p.Prefix, hop{p.NextHop, p.Neighbor, snapshot.RouteBGP, p.Internal})
		}
	}
	direct := connectedOf(r)
	for i, f := range r.Routes.Items {
		// BGP's routes are in the RIB; the kernel's are the router's own links.
		if f.Protocol == snapshot.RouteBGP || f.Protocol == snapshot.RouteKernel || f.Prefix.Bits() <= 0 ||
			f.Protocol == snapshot.RouteBIRD && (originated.Get(f.Prefix) || len(f.NextHops) > 0 && t.ofRIB(f, direct)) {
			continue
		}
		d := decision{metric: f.Metric}
		for _, h := range f.NextHops {
			if f.Type == snapshot.RouteUnicast {
				d.ways = append(d.ways, t.add(byHop, len(r.Paths.Items)+i, f.Prefix, hop{nextHop: h.Address, protocol: f.Protocol}))
			}
		}
		if before, there := t.decided[f.Prefix]; !there || d.metric < before.metric {
			t.decided[f.Prefix] = d
		} else if d.metric == before.metric {
			before.ways = append(before.ways, d.ways...)
			t.decided[f.Prefix] = before
		}
	}
	for _, f := range r.Routes.Items {
		if d, there := t.decided[f.Prefix]; there && f.Protocol == snapshot.RouteBGP && f.Metric < d.metric {
			t.decided[f.Prefix] = decision{metric: f.Metric, bgp: true}
		}
	}
	return t
}

// ofRIB reports whether BIRD has learned a route in the FIB by BGP, and not by a protocol static, which it prefers.
// The gateway may differ from the next hop if that is not on a link of the router, or has a link-local address
// besides.
func (t *routing) ofRIB(f snapshot.Route, direct *bart.Lite) bool {
	if !t.learned(f.Prefix) {
		return false
	}
	hops := map[netip.Addr]bool{}
	for _, w := range t.exactly(f.Prefix) {
		if w.protocol != snapshot.RouteBGP {
			continue
		}
		hops[w.nextHop] = true
		if !direct.Contains(w.nextHop) {
			return true
		}
	}
	return !slices.ContainsFunc(f.NextHops, func(h snapshot.NextHop) bool { return !hops[h.Address] && !h.Address.IsLinkLocalUnicast() })
}

// connectedOf are the links of a router, by its FIB.
func connectedOf(r snapshot.Router) *bart.Lite {
	var all bart.Lite
	for _, f := range r.Routes.Items {
		if f.Protocol == snapshot.RouteKernel && f.Type == snapshot.RouteUnicast && f.Prefix.Bits() > 0 {
			all.Insert(f.Prefix)
		}
	}
	return &all
}

func (t *routing) add(byHop map[hop]*way, place int, p netip.Prefix, h hop) *way {
	w := byHop[h]
	if w == nil {
		w = &way{hop: h}
		w.alone = []*way{w}
		byHop[h] = w
		t.ways = append(t.ways, w)
	}
	w.places = append(w.places, int32(place))
	t.prefixes.Modify(p, func(ways []*way, there bool) ([]*way, bool) {
		if !there {
			return w.alone[:1:1], false // an append to it copies
		}
		return append(ways, w), false
	})
	return w
}

// by are the prefixes that the router reaches by a way.
func (t *routing) by(w *way) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		paths, routes := t.router.Paths.Items, t.router.Routes.Items
		for _, place := range w.places {
			i := int(place)
			if i < len(paths) && !yield(paths[i].Prefix) || i >= len(paths) && !yield(routes[i-len(paths)].Prefix) {
				return
			}
		}
	}
}

// paths are the paths of the RIB that lead a way.
func (t *routing) paths(w *way) iter.Seq[*snapshot.Path] {
	return func(yield func(*snapshot.Path) bool) {
		for _, i := range w.places {
			if int(i) < len(t.router.Paths.Items) && !yield(&t.router.Paths.Items[i]) {
				return
			}
		}
	}
}

// uses reports whether the router sends packets for a prefix a way. If the FIB has a route from another source than
// BGP, that route decides. Else a path that is neither best nor one of several is a backup.
func (t *routing) uses(p netip.Prefix, w *way) bool {
	d, decided := t.decided[p]
	if decided && !d.bgp {
		return slices.Contains(d.ways, w)
	}
	if w.protocol != snapshot.RouteBGP {
		return !decided
	}
	places := w.places
	if t.sorted {
		first, _ := slices.BinarySearchFunc(places, p, func(place int32, p netip.Prefix) int {
			if int(place) >= len(t.router.Paths.Items) {
				return 1
			}
			return comparePrefixes(t.router.Paths.Items[place].Prefix, p)
		})
		places = places[first:]
	}
	for _, place := range places {
		if int(place) >= len(t.router.Paths.Items) {
			return false
		}
		switch path := &t.router.Paths.Items[place]; {
		case path.Prefix == p && (path.Best || path.Multipath):
			return true
		case path.Prefix != p && t.sorted:
			return false
		}
	}
	return false
}

// used are the ways by which the router sends packets for exactly a prefix.
func (t *routing) used(p netip.Prefix) iter.Seq[*way] {
	return func(yield func(*way) bool) {
		for _, w := range t.exactly(p) {
			if t.uses(p, w) && !yield(w) {
				return
			}
		}
	}
}

func (t *routing) learned(p netip.Prefix) bool {
	ways := t.exactly(p)
	return len(ways) > 0 && ways[0].protocol == snapshot.RouteBGP
}

func (t *routing) exactly(p netip.Prefix) []*way {
	ways, _ := t.prefixes.Get(p)
	return ways
}

// over are the ways to a prefix and to all wider ones, the narrowest first.
func (t *routing) over(p netip.Prefix) iter.Seq2[netip.Prefix, *way] {
	return func(yield func(netip.Prefix, *way) bool) {
		for q, ways := range t.prefixes.Supernets(p) {
			for _, w := range ways {
				if !yield(q, w) {
					return
				}
			}
		}
	}
}
