package detect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of RouteOwnership.
const (
	// Unannounced: a node's range that a router has no path for. Active, and
	// pending until the router has been without it for long enough.
	Unannounced = "unannounced"
	// WrongAnnouncer: a range that a router sends to a node that does not own it. Latent: the owner
	// still exists, and the wrong node forwards the packets to it.
	WrongAnnouncer = "wrong-announcer"
	// AbsentNode: a route to a node that Kubernetes does not have, or to a
	// range whose owner was removed. Latent: no packets are lost until the range
	// is allocated to another node or the removed machine is switched off.
	AbsentNode = "absent-node"
	// StaleRoute: a router reaches a node's range only by sessions that are not up: graceful restart keeps the
	// routes. Latent: no packets are lost until the restart time ends (Observed).
	StaleRoute = "stale-route"
	// TwinRange: two nodes own the same range. Each router prefers one of them, or shares
	// the packets out between both, and pods of the other get nothing, or a part. Active if
	// a router has a route to the range, and latent if none has. Owner is the node whose
	// object is the elder, Announcer the other.
	TwinRange = "twin-range"
)

const (
	// grace is how long a node may be without a session before its range
	// counts as unannounced: long enough for a node to join, or to be removed
	// (the session ends first, the Node and CiliumNode objects are deleted some
	// seconds later). There is no grace for a node that has its session.
	grace = 10 * time.Second
	// settle is how long a session must be up before what it does not announce counts: the peer has
	// sent its whole table by then. Routers report the start to the second only, hence two.
	settle = 2 * time.Second
	// sightings is how many snapshots must agree that a node with a session
	// does not announce its range. Lists and RIBs are not read at one instant,
	// and one snapshot can contain half of a change.
	sightings = 2
)

// RouteOwnership compares the intended origin of each pod range with what each router has.
//
// The owner is the node from whose range pods get their addresses: the CiliumNode with the range in
// spec.ipam.podCIDRs; with Calico, the node that the IPAMBlock has an affinity for; in other
// clusters the Node with the range in spec.podCIDRs. The announcer is the node that a router's path
// leads to, by its next hop or else by its neighbour; a static route counts as an announcement by
// the operator.
//
// A range that a router lacks is pending at first: a node that joins announces it a moment later,
// and the objects of a node that is removed are deleted after its session has ended. A route to the
// wrong node is latent at once, and so is a range with two owners.
type RouteOwnership struct {
	// Peering says which routers are expected to have a node's range.
	Peering Peering
}

func (RouteOwnership) Name() string { return "route-ownership" }

func (d RouteOwnership) Reads() []snapshot.Source {
	return append([]snapshot.Source{snapshot.Nodes, snapshot.CiliumNodes, snapshot.CalicoBlocks, snapshot.Pods, snapshot.Routers},
		d.Peering.announcing()...)
}

// Detect implements Detector. Findings are in order of prefix. A range that
// some routers have lacked for long enough and others have not has two: the
// active one comes first, and each names its own routers.
func (d RouteOwnership) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	vs := newViews(history, x, d.Peering)
	if !vs.now().rangesKnown {
		return nil
	}
	o := ownership{vs, vs.now(), map[netip.Addr]string{}}
	findings := slices.Concat(o.unannounced(), o.misplaced(), o.stale(), o.twins())
	slices.SortStableFunc(findings, func(a, b Finding) int {
		p, _ := a.Object.Prefix()
		q, _ := b.Object.Prefix()
		return cmp.Or(comparePrefixes(p, q), cmp.Compare(a.Announcer, b.Announcer))
	})
	return findings
}

type ownership struct {
	views
	now *view
	// formers has the answers that former has given.
	formers map[netip.Addr]string
}

func (o ownership) unannounced() []Finding {
	var findings []Finding
	for p, origins := range o.now.origins.All() {
		i := slices.IndexFunc(origins, func(c origin) bool { _, ok := o.now.nodes[c.node]; return ok })
		if i < 0 {
			continue // the owner was removed
		}
		owner := origins[i].node
		var with, without, pending []string
		var longest time.Duration // of pending
		for _, r := range o.now.routers {
			switch {
			case !complete(r.Router): // cannot be judged
			case o.now.covered(r, p):
				with = append(with, r.Name)
			case o.now.unexpected(r, owner, p) == "":
				if lasts, enough := o.lacking(r.Name, p, owner); enough {
					without = append(without, r.Name)
				} else {
					pending, longest = append(pending, r.Name), max(longest, lasts)
				}
			}
		}
		add := func(state State, without []string, pending string) {
			pods := o.podsIn(p)
			findings = append(findings, Finding{
				Kind: Unannounced, State: state, Object: Prefix(p), Owner: owner, Routers: without, Pods: pods,
				Says: fmt.Sprintf("%s no route to %s%s: %s holds that range%s, but %s%s.", do(without, "has", "have"), p, unlike(with),
					o.now.record(owner), o.sayPods(pods), o.saySpeaker(owner, p, without), pending),
			})
		}
		if len(without) > 0 {
			add(Active, without, "")
		}
		if len(pending) > 0 {
			add(Pending, pending, fmt.Sprintf("; pending: the route has been missing for %s, and this becomes active after %s, "+
				"or after %d snapshots in which %s has had a session for %s", seconds(longest), grace, sightings, owner, settle))
		}
	}
	return findings
}

// lacking returns for how long a router has been without a node's range, at
// least, and whether that is long enough for an active finding.
func (o ownership) lacking(name string, p netip.Prefix, owner string) (lasts time.Duration, enough bool) {
	node := o.now.nodes[owner]
	spoke := 0
	since := o.now.Time.Add(-o.now.Age(node.Created)) // if it has been missing in all snapshots
	first := o.now.Time
	for i, at := range slices.Backward(o.views) {
		v := at()
		r, ok := v.router(name)
		if !v.rangesKnown || !ok || !complete(r.Router) {
			continue
		}
		if v.nodes[owner].UID != node.UID || !v.owns(owner, p) || v.covered(r, p) {
			since = first
			break
		}
		first = v.Time
		if o.settled(i, name, owner) {
			spoke++
		}
	}
	lasts = o.now.Time.Sub(since)
	return lasts, spoke >= min(sightings, len(o.views)) || lasts >= grace
}

// settled reports whether a node's session with a router had been up for long enough at a snapshot.
// Where peering is observed it is by the times of snapshots alone: the router's clock may be any.
func (o ownership) settled(i int, name, node string) bool {
	at := o.views[i]()
	r, _ := at.router(name)
	session, up := r.sessions[node]
	if o.now.peering == Declared {
		return up && at.Time.Sub(session.Established) >= settle
	}
	for j := i - 1; up && j >= 0; j-- {
		v := o.views[j]()
		before, there := v.router(name)
		if !there || !before.Neighbors.Read {
			continue
		}
		if then, was := before.sessions[node]; !was || !then.Established.Equal(session.Established) {
			return false
		}
		if at.Time.Sub(v.Time) >= settle {
			return true
		}
	}
	return false
}

// complete reports whether all that a router announces was read, as far as it can be.
func complete(r snapshot.Router) bool { return r.Paths.Read && (r.Routes.Read || r.RIBOnly) }

// place is a route to the wrong node.
type place struct {
	prefix   netip.Prefix
	to       speaker
	kind     string
	protocol snapshot.RouteProtocol
}

// misplaced finds routes that lead to a node that does not own the range, or
// that involve a node that was removed.
func (o ownership) misplaced() []Finding {
	var places []place
	routers := map[place][]string{}
	for _, r := range o.now.routers {
		for _, w := range r.routing().ways {
			to, ok := o.speaker(r, w)
			if !ok {
				continue
			}
			for prefix := range r.routing().by(w) {
				p := place{prefix: prefix, to: to, kind: o.wrong(prefix, to), protocol: w.protocol}
				if p.kind == "" || !o.counts(r, w, to, prefix) || o.harmless(r, w, p) {
					continue
				}
				if routers[p] == nil {
					places = append(places, p)
				}
				if !slices.Contains(routers[p], r.Name) {
					routers[p] = append(routers[p], r.Name)
				}
			}
		}
	}
	var findings []Finding
	for _, p := range places {
		owner, _ := o.now.owner(p.prefix)
		findings = append(findings, Finding{
			Kind: p.kind, State: Latent, Object: Prefix(p.prefix), Owner: owner, Announcer: p.to.String(),
			Routers: routers[p], Pods: o.podsIn(p.prefix), Says: o.sayPlace(p, routers[p]),
		})
	}
	return findings
}

// harmless reports whether a router with a route to the wrong node also reaches the range by its owner (Observed): in
// a mesh of Calico, or because it prefers the owner's route. Nodes of Calico announce ranges of nodes that have no
// peer outside. An unknown neighbour may be of another cluster, or the owner itself.
func (o ownership) harmless(r *router, w *way, p place) bool {
	mesh := p.kind == WrongAnnouncer && o.now.layer == calicoLayer && w.protocol == snapshot.RouteBGP
	unknown := p.kind == AbsentNode && p.to.name == "" && w.protocol == snapshot.RouteBGP
	if o.now.peering == Declared || p.kind == AbsentNode && p.to.name != "" {
		return false
	}
	if owner, _ := o.now.owner(p.prefix); mesh && o.now.reflects(p.to.name, owner, p.prefix) {
		return true
	}
	for _, other := range r.routing().exactly(p.prefix) {
		to, ok := o.speaker(r, other)
		if ok && o.now.owns(to.name, p.prefix) && (mesh || r.routing().uses(p.prefix, other) && (unknown || !r.routing().uses(p.prefix, w))) {
			return true
		}
	}
	return unknown && o.itself(r, w, p.prefix)
}

// itself reports whether an unknown neighbour may be the owner of a range, by another address of its own: no
// router has a session with the owner, and all pod ranges that the neighbour announces are the owner's.
func (o ownership) itself(r *router, w *way, p netip.Prefix) bool {
	owner, _ := o.now.owner(p)
	if _, alive := o.now.nodes[owner]; !alive || slices.ContainsFunc(o.now.routers, func(r *router) bool { return r.peers[owner] }) {
		return false
	}
	for q := range r.routing().by(w) {
		if o.now.ofPods(q) && !o.now.owns(owner, q) {
			return false
		}
	}
	return true
}

func (o ownership) stale() (findings []Finding) {
	if o.now.peering == Declared {
		return nil
	}
	for p, origins := range o.now.origins.All() {
		var routers []string
		for _, r := range o.now.routers {
			used := slices.Collect(r.routing().used(p))
			fresh := func(w *way) bool { return w.protocol != snapshot.RouteBGP || !r.ended[w.neighbor] }
			if len(used) > 0 && !slices.ContainsFunc(used, fresh) {
				routers = append(routers, r.Name)
			}
		}
		if _, alive := o.now.nodes[origins[0].node]; !alive || len(routers) == 0 {
			continue
		}
		pods := o.podsIn(p)
		findings = append(findings, Finding{
			Kind: StaleRoute, State: Latent, Object: Prefix(p), Owner: origins[0].node, Routers: routers, Pods: pods,
			Says: fmt.Sprintf("%s a route to %s of sessions alone that are not up: %s holds that range%s, and graceful restart "+
				"keeps the route until the restart time ends.",
				do(routers, "has", "have"), p, o.now.record(origins[0].node), o.sayPods(pods)),
		})
	}
	return findings
}

// twins finds ranges that two nodes own. A node whose Node object was removed counts as long as its own object claims
// the range, because the allocator goes by that object.
func (o ownership) twins() []Finding {
	var findings []Finding
	for p, origins := range o.now.origins.All() {
		for _, later := range origins[min(1, len(origins)):] {
			state, routers := Latent, []string(nil)
			for _, r := range o.now.routers {
				if o.now.covered(r, p) {
					state, routers = Active, append(routers, r.Name)
				}
			}
			owner := origins[0].node
			findings = append(findings, Finding{
				Kind: TwinRange, State: state, Object: Prefix(p), Owner: owner, Announcer: later.node,
				Routers: routers, Pods: o.podsIn(p), Says: o.sayTwins(p, owner, later.node, routers),
			})
		}
	}
	return findings
}

// wrong returns what is wrong with a route, or "".
func (o ownership) wrong(p netip.Prefix, to speaker) string {
	owner, owned := o.now.owner(p)
	_, alive := o.now.nodes[owner]
	switch {
	case !to.present:
		return AbsentNode
	case o.now.owns(to.name, p), o.runs(to.name, p):
		return ""
	case owned && alive:
		return WrongAnnouncer
	case owned, o.now.allocations[p] != "", o.formerOwner(p) != "":
		return AbsentNode
	}
	return "" // no pod range: a Service's address, for example
}

// runs reports whether a prefix is one address that a node uses, for a pod or for its end of
// tunnels. Calico lets a node whose own blocks are full borrow addresses of another node's, and
// announces them one by one.
func (o ownership) runs(node string, p netip.Prefix) bool {
	return p.IsSingleIP() && (o.now.lent[p.Addr()] == node ||
		slices.ContainsFunc(o.now.podsIn(p), func(pod snapshot.Pod) bool { return pod.Node == node }))
}

type speaker struct {
	// name is empty for an absent node that is in no snapshot.
	name    string
	address netip.Addr
	// present is true if there is a Node object.
	present bool
}

// String is the name, or the address if there is none.
func (s speaker) String() string { return cmp.Or(s.name, s.address.String()) }

// speaker returns the node that a way leads to, present or not. It returns
// false for what leads to no node, such as a spine.
func (o ownership) speaker(r *router, w *way) (speaker, bool) {
	ends := []netip.Addr{w.nextHop, w.neighbor}
	for _, end := range ends {
		if name, ok := o.now.addresses[end]; ok {
			return speaker{name, end, true}, true
		}
	}
	for _, end := range ends {
		if name := o.former(end); name != "" {
			// A node that only has another address now is not absent.
			_, still := o.now.nodes[name]
			return speaker{name, end, false}, !still
		}
	}
	if o.now.stranger(r, w) {
		return speaker{address: w.nextHop}, true
	}
	// An eBGP neighbour in the nodes' own AS is a node.
	as := r.as[w.neighbor]
	stranger := w.protocol == snapshot.RouteBGP && !w.internal && as != 0 && r.nodeAS[as]
	return speaker{address: w.neighbor}, stranger
}

// counts reports whether the node by which a router reaches a prefix may be of this cluster. A node without a known
// name may be of another cluster with the same AS and the same ranges in Node.spec (Observed). A static route to a
// stranger counts if it is to a pod range.
func (o ownership) counts(r *router, w *way, to speaker, p netip.Prefix) bool {
	_, owned := o.now.owner(p)
	if to.name == "" && w.protocol != snapshot.RouteBGP {
		return owned
	}
	return to.name != "" || o.now.peering == Declared || owned && len(r.family(p).pods) > 0
}

func (o ownership) speakers(r *router, p netip.Prefix) (all []speaker) {
	for _, w := range r.routing().exactly(p) {
		if to, ok := o.speaker(r, w); ok && o.counts(r, w, to, p) {
			all = append(all, to)
		}
	}
	return all
}

// former returns the name of the removed node that had an address, if its
// CiliumNode or an earlier snapshot has it.
func (o ownership) former(a netip.Addr) (name string) {
	if answer, asked := o.formers[a]; asked {
		return answer
	}
	defer func() { o.formers[a] = name }()
	for _, at := range slices.Backward(o.views) {
		v := at()
		if name, ok := v.addresses[a]; ok {
			return name
		}
		for _, n := range v.CiliumNodes.Items {
			if slices.Contains(n.InternalIPs, a) {
				return n.Name
			}
		}
	}
	return ""
}

func (o ownership) formerOwner(p netip.Prefix) string {
	for _, at := range slices.Backward(o.views) {
		if owner, ok := at().owner(p); ok && at().rangesKnown {
			return owner
		}
	}
	return ""
}

func (o ownership) podsIn(p netip.Prefix) []string {
	return each.Of(o.now.podsIn(p), snapshot.Pod.String)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
