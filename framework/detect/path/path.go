// Package path traces where packets end, by the tables of a snapshot: routes of nodes and routers,
// and IPVS services of nodes. Like a detector it changes nothing and sees no traffic.
package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

const maxHops = 8

// Path is where packets go, from one member of a topology to the next.
type Path struct {
	// Expected are the members on the path that the topology declares, the sender first.
	Expected []string
	// Hops are the members that the tables lead to, the sender first.
	Hops []string
	// Unread are the Hops whose routes were not read: there the declared path was followed.
	Unread []string
	// End is why the packets get no further than the last of Hops; empty if that is the
	// last of Expected.
	End string
}

// Tracer follows packets through the tables of a snapshot.
type Tracer struct {
	// Tables is nil if no table was read.
	Tables *snapshot.Snapshot
	// Members are the members of the topology by their addresses.
	Members map[netip.Addr]string
}

// Trace follows packets for an address along the routes. Where none were read it follows the
// declared path. There is one Path for each combination of next hops.
func (t Tracer) Trace(declared []string, target netip.Addr) []Path {
	return t.onward(Path{Expected: declared, Hops: declared[:1]}, target)
}

func (t Tracer) onward(p Path, target netip.Addr) []Path {
	at := p.Hops[len(p.Hops)-1]
	if at == p.Expected[len(p.Expected)-1] {
		return []Path{p}
	}
	if len(p.Hops) == maxHops {
		return []Path{p.ends("the path has more than %d hops", maxHops)}
	}
	nexts, read := t.nexts(at, target)
	if !read {
		i := slices.Index(p.Expected, at)
		if i < 0 {
			from := p.Hops[len(p.Hops)-2]
			meant := p.Expected[min(slices.Index(p.Expected, from)+1, len(p.Expected)-1)]
			return []Path{p.ends("%s forwards them to %s instead of %s; the routes of %s were not read", from, at, meant, at)}
		}
		p.Unread = append(slices.Clone(p.Unread), at)
		nexts = []next{{to: p.Expected[i+1]}}
	}
	var all []Path
	for _, n := range nexts {
		longer := p
		longer.Hops = append(slices.Clone(p.Hops), n.to)
		switch {
		case n.end != "":
			all = append(all, p.ends("%s", n.end))
		case n.to == at:
			all = append(all, p.ends("%s takes %s as directly connected", at, target))
		case slices.Contains(p.Hops, n.to):
			all = append(all, longer.ends("they loop between %s and %s", at, n.to))
		default:
			all = append(all, t.onward(longer, target)...)
		}
	}
	return all
}

func (p Path) ends(format string, args ...any) Path {
	p.End = fmt.Sprintf(format, args...)
	return p
}

// next is the member that packets are forwarded to, or why they are not forwarded.
type next struct{ to, end string }

// nexts are where a member forwards packets for an address, one for each next hop of its
// route; read is whether its routes were read.
func (t Tracer) nexts(at string, target netip.Addr) (nexts []next, read bool) {
	routes, read := t.routes(at)
	if !read || !target.IsValid() {
		return nil, false
	}
	best := snapshot.RouteTo(routes, target)
	switch {
	case best == nil:
		return []next{{end: fmt.Sprintf("%s has no route to %s", at, target)}}, true
	case len(best.NextHops) == 0:
		return []next{{end: fmt.Sprintf("%s has no route to %s (%s %s)", at, target, best.Type, best.Prefix)}}, true
	}
	for _, h := range best.NextHops {
		switch name := t.Members[cmp.Or(h.Address, target)]; {
		case name != "":
			nexts = append(nexts, next{to: name})
		case !h.Address.IsValid():
			nexts = append(nexts, next{to: at})
		default:
			nexts = append(nexts, next{end: fmt.Sprintf("%s forwards %s to %s, which no member of the topology has", at, target, h.Address)})
		}
	}
	return nexts, true
}

func (t Tracer) routes(name string) (routes []snapshot.Route, read bool) {
	if t.Tables == nil {
		return nil, false
	}
	if r, there := each.First(t.Tables.Routers, func(r snapshot.Router) bool { return r.Name == name }); there {
		return r.Routes.Items, r.Routes.Read
	}
	n, _ := each.First(t.Tables.NodeTables, func(n snapshot.NodeTable) bool { return n.Node == name })
	return n.Routes.Items, n.Routes.Read
}

// Service says why packets for the address of a Service get no further than the IPVS
// table of the client's node. It is empty where that table leads to a ready endpoint, or
// where it, the Services or the EndpointSlices were not read. Protocol is "tcp" or "udp".
func (t Tracer) Service(node string, target netip.AddrPort, protocol string) (end string) {
	table, read := t.ipvs(node)
	service, ready, found := t.service(target.Addr())
	if !read || !found {
		return ""
	}
	virtual, there := each.First(table, func(v snapshot.VirtualServer) bool {
		return v.Address == target && strings.EqualFold(v.Protocol, protocol)
	})
	if !there {
		return fmt.Sprintf("%s has no IPVS service %s (%s)", node, target, service)
	}
	var servers []string
	for _, server := range virtual.Servers {
		switch {
		case server.Weight == 0:
		case slices.Contains(ready, server.Address.Addr()):
			return ""
		default:
			servers = append(servers, server.Address.String())
		}
	}
	endpoints := "none"
	if len(ready) > 0 {
		endpoints = fmt.Sprint(ready)
	}
	if len(servers) == 0 {
		return fmt.Sprintf("%s has no real server for %s (%s) in IPVS; ready endpoints: %s", node, target, service, endpoints)
	}
	return fmt.Sprintf("%s forwards %s (%s) to %s by IPVS; ready endpoints: %s", node, target, service, strings.Join(servers, " and "),
		endpoints)
}

// ipvs is the IPVS table of a node; read is false where kube-proxy runs in another mode.
func (t Tracer) ipvs(node string) (table []snapshot.VirtualServer, read bool) {
	if t.Tables == nil {
		return nil, false
	}
	p, read := each.First(t.Tables.Proxies, func(p snapshot.Proxy) bool { return p.Node == node && p.Read && p.Mode == "ipvs" })
	return p.Table, read
}

func (t Tracer) service(address netip.Addr) (s snapshot.Service, ready []netip.Addr, found bool) {
	if t.Tables == nil || !t.Tables.EndpointSlices.Read {
		return s, nil, false
	}
	s, found = each.First(t.Tables.Services.Items, func(s snapshot.Service) bool { return slices.Contains(s.ClusterIPs, address) })
	for _, e := range t.Tables.EndpointSlices.Items {
		if found && e.Namespace == s.Namespace && e.Service == s.Name {
			ready = append(ready, e.Ready...)
		}
	}
	return s, ready, found
}
