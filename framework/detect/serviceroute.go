package detect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Kinds of findings of ServiceRoute.
const (
	// NoRoute: an address of a Service that no router has a route to.
	NoRoute = "no-route"
	// NoLocalEndpoint: an address of a Service of externalTrafficPolicy Local, which routers send to nodes
	// without a ready endpoint: these drop the packets.
	NoLocalEndpoint = "no-local-endpoint"
)

// ServiceRoute compares the addresses of Services of type LoadBalancer that MetalLB, Cilium or Calico is configured
// to announce by BGP with the routes of the routers. Services of a class that none of the three serves are another
// load balancer's. A Service without a ready endpoint needs no route. Addresses of IPv6 are judged if all routers
// were read for them.
//
// A finding is pending at first: an address that routers have had becomes active with the second
// snapshot in which none has it, and one that they have never had after announcedWithin.
type ServiceRoute struct {
	// Peering says which routers are expected to have a route.
	Peering Peering
}

func (ServiceRoute) Name() string { return "service-route" }

func (ServiceRoute) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Nodes, snapshot.Services, snapshot.EndpointSlices, snapshot.BGPAdvertisements, snapshot.Routers}
}

// Detect implements Detector. Findings are in order of namespace and name of the Service.
func (d ServiceRoute) Detect(history []snapshot.Snapshot, x *Index) []Finding {
	vs := newViews(history, x, d.Peering)
	now := vs.now()
	var findings []Finding
	for _, service := range now.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			if f, misled := now.misled(service, address); misled {
				findings = append(findings, f)
			}
			if !now.lacksRoute(service.String(), address) {
				continue
			}
			f := Finding{
				Kind: NoRoute, State: Active, Object: Prefix(netip.PrefixFrom(address, address.BitLen())),
				Routers: each.Of(now.Routers, func(r snapshot.Router) string { return r.Name }),
				Says: fmt.Sprintf("No router has a route to %s, the address of Service %s, which has ready endpoints: %s.",
					address, service, strings.Join(now.excluded(service, address), "; ")),
			}
			lasts, enough := vs.lackedFor(service.String(), address)
			if d.Peering == Observed && len(history) == 1 { // a new one may not have been announced yet
				lasts = now.Age(service.Created)
				enough = lasts >= announcedWithin
			}
			if !enough {
				f.State, f.Says = Pending, strings.TrimSuffix(f.Says, ".")+fmt.Sprintf("; pending: the route has been missing for %s.", seconds(lasts))
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// misled is the finding of an address of a Service of policy Local that routers send to nodes without an endpoint.
// The narrowest route of each router counts. kube-proxy uses terminating endpoints where there is no other.
func (v *view) misled(service snapshot.Service, address netip.Addr) (f Finding, found bool) {
	on, draining := v.services()[service.String()].on, v.services()[service.String()].draining
	if !service.Local || len(on) == 0 || !v.readForRoutes() || !v.announced(service, address) {
		return f, false
	}
	without := map[string]bool{}
	for _, r := range v.routers {
		if !r.At.IsZero() {
			continue // it says where endpoints were
		}
		for p := range r.routing().prefixes.Supernets(netip.PrefixFrom(address, address.BitLen())) {
			used := false
			for w := range r.routing().used(p) {
				used = true
				if node := cmp.Or(v.addresses[w.nextHop], v.addresses[w.neighbor]); node != "" && !on[node] && !draining[node] {
					without[node] = true
					f.Routers = append(f.Routers, r.Name)
				}
			}
			if used {
				break
			}
		}
	}
	f.Routers = slices.Compact(f.Routers)
	f.Kind, f.State, f.Object = NoLocalEndpoint, Active, Prefix(netip.PrefixFrom(address, address.BitLen()))
	if changed := v.services()[service.String()].changed; v.peering == Observed && v.Age(changed) < announcedWithin {
		f.State = Pending // an endpoint has come or gone, and routers may not know it yet
	}
	nodes := slices.Sorted(maps.Keys(without))
	f.Says = fmt.Sprintf("%s packets for %s, the address of Service %s, to %s, which %s no ready endpoint of its own: "+
		"externalTrafficPolicy Local asks for one, and %s the packets; endpoints are on %s.",
		do(f.Routers, "sends", "send"), address, service, and(few(nodes)), plural(len(nodes), "has", "have"),
		plural(len(nodes), "it drops", "they drop"), and(few(slices.Sorted(maps.Keys(on)))))
	return f, len(without) > 0
}

// service is a Service, and the nodes with ready endpoints (on) or terminating ones that still serve (draining).
type service struct {
	snapshot.Service
	ready        bool // it has ready endpoints
	on, draining map[string]bool
	changed      time.Time // when an EndpointSlice was written last
}

func servicesOf(s snapshot.Snapshot) map[string]service {
	all := map[string]service{}
	for _, o := range s.Services.Items {
		all[o.String()] = service{Service: o}
	}
	for _, e := range s.EndpointSlices.Items {
		name := e.Namespace + "/" + e.Service
		entry, there := all[name]
		if !there {
			continue
		}
		entry.ready = entry.ready || len(e.Ready) > 0
		if e.Changed.After(entry.changed) {
			entry.changed = e.Changed
		}
		if entry.on == nil {
			entry.on, entry.draining = map[string]bool{}, map[string]bool{}
		}
		for _, node := range e.DrainingNodes {
			entry.draining[node] = true
		}
		for _, node := range e.ReadyNodes {
			entry.on[node] = true
		}
		all[name] = entry
	}
	return all
}

// advertisement is a BGPAdvertisement with its ranges in order. reach has for each range the last address of all
// ranges up to it.
type advertisement struct {
	snapshot.BGPAdvertisement
	reach []netip.Addr
}

func advertisementsOf(s snapshot.Snapshot) (all []advertisement) {
	for _, b := range s.BGPAdvertisements.Items {
		b.Ranges = slices.SortedFunc(slices.Values(b.Ranges), func(a, b snapshot.AddressRange) int { return a.First.Compare(b.First) })
		reach := make([]netip.Addr, len(b.Ranges))
		for i, r := range b.Ranges {
			if reach[i] = r.Last; i > 0 && reach[i-1].Compare(r.Last) > 0 {
				reach[i] = reach[i-1]
			}
		}
		all = append(all, advertisement{b, reach})
	}
	return all
}

func (b advertisement) announces(a netip.Addr) bool {
	next := sort.Search(len(b.Ranges), func(i int) bool { return a.Less(b.Ranges[i].First) })
	return next > 0 && a.Compare(b.reach[next-1]) <= 0
}

// includes reports whether all of a prefix is announced. A wider prefix, such as 10.0.0.0/8, is no aggregate of what
// is announced.
func (b advertisement) includes(p netip.Prefix) bool {
	r, err := snapshot.ParseAddressRange(p.String())
	return err == nil && b.announces(r.First) && b.announces(r.Last)
}

func (v *view) advertised(address netip.Addr) []advertisement {
	return each.Where(v.advertisements(), func(b advertisement) bool { return b.announces(address) })
}

// lacksRoute reports whether no router has a route to the address of a Service that nodes are
// to announce. It is false if a source was not read, and where peering is observed if none of
// the nodes is a neighbour of a router, or some neighbours alone are told, or an aggregate may bring it.
func (v *view) lacksRoute(service string, address netip.Addr) bool {
	return v.unrouted(service, address) && (v.peering == Declared || v.expected(service, address))
}

// unrouted is lacksRoute without regard to the routers' neighbours.
func (v *view) unrouted(service string, address netip.Addr) bool {
	entry := v.services()[service]
	if !v.readForRoutes() || !v.readForFamily(address) || !entry.ready || !slices.Contains(entry.LoadBalancerIPs, address) {
		return false
	}
	routed, _ := v.hasRoute(address)
	return v.announced(entry.Service, address) && !routed
}

// announced reports whether a node is to announce an address of a Service.
func (v *view) announced(service snapshot.Service, address netip.Addr) bool {
	return slices.ContainsFunc(v.advertised(address), func(b advertisement) bool { return len(b.Nodes) > 0 && b.Serves(service) })
}

// readForRoutes reports whether all was read that lacksRoute asks.
func (v *view) readForRoutes() bool {
	return v.Nodes.Read && v.Services.Read && v.EndpointSlices.Read && v.BGPAdvertisements.Read && len(v.Routers) > 0 &&
		!slices.ContainsFunc(v.Routers, func(r snapshot.Router) bool { return !complete(r) })
}

// announcedWithin is how long a new Service's address may take to the routers. MetalLB with
// FRR collects changes and has FRR reload its configuration, which took 4.6 s on a busy machine.
const announcedWithin = 20 * time.Second

// readForFamily reports whether some router carries the family of an address, and all routers that carry it were read
// for it.
func (v *view) readForFamily(address netip.Addr) bool {
	return v.carried(address) && !slices.ContainsFunc(v.routers, func(r *router) bool { return r.Carries(address) && !r.readFor(address) })
}

// carried reports whether a router carries the family of an address, as far as that is said.
func (v *view) carried(address netip.Addr) bool {
	return slices.ContainsFunc(v.Routers, func(r snapshot.Router) bool { return r.Carries(address) })
}

func (v *view) unaskedAddresses() []string {
	return v.addressesOf(func(service snapshot.Service, address netip.Addr) bool {
		routed, _ := v.hasRoute(address)
		return v.readForRoutes() && v.carried(address) && !v.readForFamily(address) && v.announced(service, address) && !routed
	})
}

func (v *view) addressesOf(holds func(snapshot.Service, netip.Addr) bool) (addresses []string) {
	for _, service := range v.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			if holds(service, address) {
				addresses = append(addresses, address.String())
			}
		}
	}
	return addresses
}

// lackedFor is for how long no router has had a route, at least, and whether that is long
// enough for an active finding.
func (vs views) lackedFor(service string, address netip.Addr) (lasts time.Duration, enough bool) {
	now, seen, had := vs.now(), 0, false
	for _, at := range slices.Backward(vs) {
		v := at()
		if !v.readForRoutes() {
			continue // it tells nothing, and must not begin the time anew
		}
		if v.lacksRoute(service, address) {
			seen++
			lasts = now.Time.Sub(v.Time)
			continue
		}
		had, _ = v.hasRoute(address)
		break
	}
	return lasts, len(vs) == 1 || had && seen >= sightings || lasts >= announcedWithin
}

// hasRoute reports whether a router has a route to an address: to exactly the announced prefix, wherever that leads,
// as from a spine or by a second interface of a node; or a wider one that leads to a node. A wider route that leads
// elsewhere, such as a spine's aggregate, does not bring packets to nodes. With Observed an aggregate of what is
// announced does, if it comes from the cluster; if not, it may, because other racks may announce it. A backup path
// does not count.
func (v *view) hasRoute(address netip.Addr) (brings, may bool) {
	alone, by := netip.PrefixFrom(address, address.BitLen()), v.advertised(address)
	for _, r := range v.routers {
		for p, w := range r.routing().over(alone) {
			aggregate := v.peering == Observed && slices.ContainsFunc(by, func(b advertisement) bool { return b.includes(p) })
			switch {
			case !r.routing().uses(p, w), v.stranger(r, w):
			case p == alone, slices.ContainsFunc(by, func(b advertisement) bool { return b.Prefix(address) == p }),
				v.addresses[w.nextHop] != "", v.addresses[w.neighbor] != "":
				return true, false
			case aggregate:
				may = true
				for path := range r.routing().paths(w) {
					if path.Prefix == p && v.fromCluster(r, w, path) {
						return true, false
					}
				}
			}
		}
	}
	return false, may
}

// excluded says of each node that is to announce an address of a Service why it does not.
func (v *view) excluded(service snapshot.Service, address netip.Addr) []string {
	announce, metalLB := map[string]bool{}, map[string]bool{}
	for _, b := range v.advertised(address) {
		for _, node := range b.Nodes {
			announce[node] = true
			metalLB[node] = metalLB[node] || b.Speaker == "" // Cilium's agents announce from nodes that MetalLB leaves out
		}
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(announce)) {
		var why []string
		node, there := v.nodes[name]
		if !there {
			continue // it is gone since
		}
		if metalLB[name] && node.Unschedulable {
			why = append(why, "is unschedulable")
		}
		if metalLB[name] && node.Excluded {
			why = append(why, "has the label node.kubernetes.io/exclude-from-external-load-balancers")
		}
		if service.Local && !v.services()[service.String()].on[name] {
			why = append(why, "has no ready endpoint of its own, which externalTrafficPolicy Local asks for")
		}
		inSession := func(r *router) bool {
			return slices.Contains(node.InternalIPs, r.sessions[name].Address) || r.untold[name]
		}
		if !slices.ContainsFunc(v.routers, inSession) {
			why = append(why, "has no BGP session")
		}
		if why == nil {
			why = []string{"announces it to no router, and nothing that was read says why"}
		}
		all = append(all, name+" "+and(why))
	}
	return all
}

// expected reports whether routers are expected to have the address of a Service, where peering
// is observed: one of the nodes that announce it is a BGP neighbour of a router, in any state, and
// all neighbours are told. With policy Local, these are nodes that have an endpoint. A table dump
// that is older than the Service cannot have it, and an aggregate that may bring it is left open.
func (v *view) expected(service string, address netip.Addr) bool {
	entry, by := v.services()[service], v.advertised(address)
	if _, may := v.hasRoute(address); may {
		return false
	}
	peers := func(node string) bool {
		return (!entry.Local || entry.on[node]) && slices.ContainsFunc(v.routers, func(r *router) bool { return r.peers[node] })
	}
	return slices.ContainsFunc(by, func(b advertisement) bool { return slices.ContainsFunc(b.Nodes, peers) }) &&
		!slices.ContainsFunc(by, func(b advertisement) bool { return len(b.Peers) > 0 }) &&
		!slices.ContainsFunc(v.Routers, func(r snapshot.Router) bool { return !r.At.IsZero() && entry.Created.After(r.At) })
}

func (v *view) unjudgedAddresses() []string {
	return v.addressesOf(func(service snapshot.Service, address netip.Addr) bool {
		return v.unrouted(service.String(), address) && !v.expected(service.String(), address)
	})
}
