package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// NoRoute is the kind of ServiceRoute's findings: an address of a Service that no router has a
// route to.
const NoRoute = "no-route"

// ServiceRoute compares the addresses of Services of type LoadBalancer that MetalLB or Cilium is
// configured to announce by BGP with the routes of the routers. A Service without a ready
// endpoint has no route, and needs none. Addresses of IPv6 are judged if all routers were read for
// them.
//
// A finding is pending at first: an address that routers have had becomes active with the
// second snapshot in which none has it, and one that they have never had after
// announcedWithin.
type ServiceRoute struct {
	// Peering says which routers are expected to have a route.
	Peering Peering
	// views are snapshots that Detect has indexed, by their times. The pointer keeps detectors
	// comparable.
	views *map[time.Time]*view
}

// view is a snapshot, indexed once.
func (d ServiceRoute) view(s snapshot.Snapshot) *view {
	v, made := (*d.views)[s.Time]
	if !made {
		v = newView(s, d.Peering)
		(*d.views)[s.Time] = v
	}
	return v
}

// Name implements Detector.
func (ServiceRoute) Name() string { return "service-route" }

// Reads implements Detector.
func (ServiceRoute) Reads() []snapshot.Source {
	return []snapshot.Source{snapshot.Nodes, snapshot.Services, snapshot.EndpointSlices, snapshot.BGPAdvertisements, snapshot.Routers}
}

// Detect implements Detector. Findings are in order of namespace and name of the Service.
func (d ServiceRoute) Detect(history []snapshot.Snapshot) []Finding {
	if len(history) == 0 {
		return nil
	}
	d.views = &map[time.Time]*view{}
	now := history[len(history)-1]
	var findings []Finding
	for _, service := range now.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			missing, nodes := d.lacksRoute(now, service.String(), address)
			if !missing {
				continue
			}
			f := Finding{
				Detector: d.Name(), Kind: NoRoute, State: Active, Object: Prefix(netip.PrefixFrom(address, address.BitLen())),
				Says: fmt.Sprintf("No router has a route to %s, the address of Service %s, which has ready endpoints: %s.",
					address, service, strings.Join(excluded(now, service, address, nodes), "; ")),
			}
			for _, r := range now.Routers {
				f.Routers = append(f.Routers, r.Name)
			}
			lasts, enough := d.lackedFor(history, service.String(), address)
			if d.Peering == Observed && len(history) == 1 { // a new one may not have been announced yet
				lasts = now.Time.Sub(service.Created)
				enough = lasts >= announcedWithin
			}
			if !enough {
				f.State = Pending
				f.Says = strings.TrimSuffix(f.Says, ".") + fmt.Sprintf("; pending: the route has been missing for %s.", seconds(lasts))
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// lacksRoute reports whether no router has a route to the address of a Service that nodes are
// to announce, and these nodes. It is false if a source was not read, and where peering is
// observed if none of the nodes is a neighbour of a router, or some neighbours alone are told.
func (d ServiceRoute) lacksRoute(s snapshot.Snapshot, service string, address netip.Addr) (missing bool, nodes []string) {
	missing, nodes = d.unrouted(s, service, address)
	return missing && (d.Peering == Declared || d.expected(s, service, address, nodes)), nodes
}

// unrouted is lacksRoute, whoever the routers' neighbours are.
func (d ServiceRoute) unrouted(s snapshot.Snapshot, service string, address netip.Addr) (missing bool, nodes []string) {
	if !readForRoutes(s) {
		return false, nil
	}
	if !readForFamily(s, address) {
		return false, nil
	}
	has := slices.ContainsFunc(s.Services.Items, func(o snapshot.Service) bool {
		return o.String() == service && slices.Contains(o.LoadBalancerIPs, address)
	})
	if !has || !slices.ContainsFunc(s.EndpointSlices.Items, func(e snapshot.EndpointSlice) bool {
		return e.Namespace+"/"+e.Service == service && len(e.Ready) > 0
	}) {
		return false, nil
	}
	for _, b := range s.BGPAdvertisements.Items {
		if b.Announces(address) {
			nodes = append(nodes, b.Nodes...)
		}
	}
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) == 0 {
		return false, nil // no node is to announce it
	}
	return !d.hasRoute(s, address), nodes
}

// readForRoutes reports whether all was read that lacksRoute asks.
func readForRoutes(s snapshot.Snapshot) bool {
	return s.Nodes.Read && s.Services.Read && s.EndpointSlices.Read && s.BGPAdvertisements.Read && len(s.Routers) > 0 &&
		!slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool { return !complete(r) })
}

// readForFamily reports whether the routers were read for routes to an address of a family.
func readForFamily(s snapshot.Snapshot, address netip.Addr) bool {
	return address.Is4() || !slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool { return !r.IPv6 })
}

// unasked are the addresses that nodes are to announce, and whose family some router was not read
// for. Open: a Service has no other.
func (d ServiceRoute) unasked(s snapshot.Snapshot) (addresses []string, open bool) {
	for _, service := range s.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			announced := slices.ContainsFunc(s.BGPAdvertisements.Items, func(b snapshot.BGPAdvertisement) bool { return b.Announces(address) && len(b.Nodes) > 0 })
			if announced && readForRoutes(s) && !readForFamily(s, address) {
				addresses = append(addresses, address.String())
				open = open || !slices.ContainsFunc(service.LoadBalancerIPs, netip.Addr.Is4)
			}
		}
	}
	return addresses, open
}

// toNode reports whether a route leads to a node, and not to a router beyond.
func toNode(s snapshot.Snapshot, a announcement) bool {
	return slices.ContainsFunc(s.Nodes.Items, func(n snapshot.Node) bool {
		return slices.Contains(n.InternalIPs, a.nextHop) || slices.Contains(n.InternalIPs, a.neighbor)
	})
}

// announcedWithin is how long a new Service's address may take to the routers. MetalLB with
// FRR collects changes and has FRR reload its configuration, which took 4.6 s on a busy machine.
const announcedWithin = 20 * time.Second

// lackedFor is for how long no router has had a route, at least, and whether that is long
// enough for an active finding.
func (d ServiceRoute) lackedFor(history []snapshot.Snapshot, service string, address netip.Addr) (lasts time.Duration, enough bool) {
	now, seen, had := history[len(history)-1], 0, false
	for i := len(history) - 1; i >= 0; i-- {
		if !readForRoutes(history[i]) {
			continue // it tells nothing, and must not begin the time anew
		}
		if missing, _ := d.lacksRoute(history[i], service, address); missing {
			seen++
			lasts = now.Time.Sub(history[i].Time)
			continue
		}
		had = d.hasRoute(history[i], address)
		break
	}
	return lasts, len(history) == 1 || had && seen >= sightings || lasts >= announcedWithin
}

// hasRoute reports whether a router has a route to an address: to exactly what is announced of
// it, wherever that leads, as from a spine or by a second interface of a node; or a wider one
// that leads to a node. A wider one that leads elsewhere, such as a spine's aggregate, does not
// bring packets to nodes. Where peering is only observed, an aggregate of what is announced does:
// other racks may announce it.
func (d ServiceRoute) hasRoute(s snapshot.Snapshot, address netip.Addr) bool {
	announced := []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
	for _, b := range s.BGPAdvertisements.Items {
		if b.Announces(address) {
			announced = append(announced, b.Prefix(address))
		}
	}
	aggregate := func(p netip.Prefix) bool {
		return d.Peering == Observed && slices.ContainsFunc(s.BGPAdvertisements.Items, func(b snapshot.BGPAdvertisement) bool {
			return b.Announces(address) && b.Announces(p.Masked().Addr())
		})
	}
	return slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool {
		return slices.ContainsFunc(d.view(s).announcements(r), func(a announcement) bool {
			return a.prefix.Contains(address) && (slices.Contains(announced, a.prefix) || toNode(s, a) || aggregate(a.prefix))
		})
	})
}

// speaksMetalLB reports whether MetalLB is to announce an address from a node.
func speaksMetalLB(s snapshot.Snapshot, address netip.Addr, node string) bool {
	return slices.ContainsFunc(s.BGPAdvertisements.Items, func(b snapshot.BGPAdvertisement) bool {
		return b.Speaker == "" && b.Announces(address) && slices.Contains(b.Nodes, node)
	})
}

// excluded says of each node why it does not announce an address of a Service.
func excluded(s snapshot.Snapshot, service snapshot.Service, address netip.Addr, nodes []string) []string {
	var all []string
	for _, name := range nodes {
		var why []string
		i := slices.IndexFunc(s.Nodes.Items, func(n snapshot.Node) bool { return n.Name == name })
		if i < 0 {
			continue // it is gone since
		}
		metalLB := speaksMetalLB(s, address, name) // Cilium's agents announce from such nodes
		if metalLB && s.Nodes.Items[i].Unschedulable {
			why = append(why, "is unschedulable")
		}
		if metalLB && s.Nodes.Items[i].Excluded {
			why = append(why, "has the label node.kubernetes.io/exclude-from-external-load-balancers")
		}
		if service.Local && !slices.ContainsFunc(s.EndpointSlices.Items, func(e snapshot.EndpointSlice) bool {
			return e.Namespace == service.Namespace && e.Service == service.Name && slices.Contains(e.ReadyNodes, name)
		}) {
			why = append(why, "has no ready endpoint of its own, which externalTrafficPolicy Local asks for")
		}
		if !inSession(s, name) {
			why = append(why, "has no BGP session")
		}
		if why == nil {
			why = []string{"announces it to no router, and nothing that was read says why"}
		}
		all = append(all, name+" "+and(why))
	}
	return all
}

// peers reports whether one of the nodes that announce a Service is a BGP neighbour of a router,
// in any state: with policy Local, of those that have an endpoint.
func (d ServiceRoute) peers(s snapshot.Snapshot, service string, nodes []string) bool {
	local := slices.ContainsFunc(s.Services.Items, func(o snapshot.Service) bool { return o.String() == service && o.Local })
	ready := func(node string) bool {
		return slices.ContainsFunc(s.EndpointSlices.Items, func(e snapshot.EndpointSlice) bool {
			return e.Namespace+"/"+e.Service == service && slices.Contains(e.ReadyNodes, node)
		})
	}
	v := d.view(s)
	return slices.ContainsFunc(nodes, func(node string) bool {
		return (!local || ready(node)) && slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool { return v.neighbors(r, node) })
	})
}

// unjudged are the addresses of Services that no router has a route to, and that no neighbour of
// one announces.
func (d ServiceRoute) unjudged(s snapshot.Snapshot) (addresses []string) {
	d.views = &map[time.Time]*view{}
	for _, service := range s.Services.Items {
		for _, address := range service.LoadBalancerIPs {
			if missing, nodes := d.unrouted(s, service.String(), address); missing && !d.expected(s, service.String(), address, nodes) {
				addresses = append(addresses, address.String())
			}
		}
	}
	return addresses
}

// expected reports whether routers are expected to have the address of a Service that nodes are
// to announce, where peering is observed.
func (d ServiceRoute) expected(s snapshot.Snapshot, service string, address netip.Addr, nodes []string) bool {
	return d.peers(s, service, nodes) && !slices.ContainsFunc(s.BGPAdvertisements.Items, func(b snapshot.BGPAdvertisement) bool {
		return b.Announces(address) && len(b.Peers) > 0
	}) && !slices.ContainsFunc(s.Services.Items, func(o snapshot.Service) bool {
		return o.String() == service && slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool { return !r.At.IsZero() && o.Created.After(r.At) })
	})
}

// inSession reports whether a node has a BGP session with a router, or may have one.
func inSession(s snapshot.Snapshot, node string) bool {
	for _, n := range s.Nodes.Items {
		for _, a := range n.InternalIPs {
			if n.Name == node && slices.ContainsFunc(s.Routers, func(r snapshot.Router) bool {
				return slices.ContainsFunc(r.Neighbors.Items, func(n snapshot.Neighbor) bool {
					return n.Address == a && (n.State == snapshot.SessionEstablished || n.State == snapshot.SessionUnknown)
				})
			}) {
				return true
			}
		}
	}
	return false
}
