package snapshot

import (
	"cmp"
	"context"
	"net/netip"
	"strings"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/each"
)

// What routers and kernels say is as package bgp reads it.
type (
	Path          = bgp.Path
	Neighbor      = bgp.Neighbor
	Route         = bgp.Route
	NextHop       = bgp.NextHop
	LinkNeighbor  = bgp.LinkNeighbor
	Answer        = bgp.Answer
	RouteType     = bgp.RouteType
	RouteProtocol = bgp.RouteProtocol
	BIRDProtocol  = bgp.BIRDProtocol
)

const (
	SessionEstablished = bgp.StateEstablished
	SessionUnknown     = bgp.StateUnknown
	RouteUnicast       = bgp.RouteUnicast
	RouteBlackhole     = bgp.RouteBlackhole
	RouteUnreachable   = bgp.RouteUnreachable
	RouteKernel        = bgp.RouteKernel
	RouteStatic        = bgp.RouteStatic
	RouteBGP           = bgp.RouteBGP
	RouteBIRD          = bgp.RouteBIRD
	Established        = bgp.BIRDEstablished
)

// Session returns the router's established session with an address, if there is one.
func (r Router) Session(with netip.Addr) (n Neighbor, up bool) {
	return each.First(r.Neighbors.Items, func(n Neighbor) bool { return n.Address == with && n.State == SessionEstablished })
}

// RouteTo is the route that a kernel with these routes takes to an address: the narrowest, and of several as narrow
// the one of the lowest metric; nil if there is none.
func RouteTo(routes []Route, to netip.Addr) (best *Route) {
	for i, r := range routes {
		if r.Prefix.Contains(to) && (best == nil || cmp.Or(best.Prefix.Bits()-r.Prefix.Bits(), r.Metric-best.Metric) < 0) {
			best = &routes[i]
		}
	}
	return best
}

func routeState(layer Layer, where string) func(Route, *statements) {
	return func(r Route, to *statements) {
		node := ""
		var hops []string
		for _, h := range r.NextHops {
			hop := "dev " + h.Interface
			if h.Address.IsValid() {
				node = to.nodes[h.Address]
				hop = "via " + to.named(h.Address) + " " + hop
			}
			hops = append(hops, hop)
		}
		to.add(layer, where, r.Prefix.String(), node, "%s", cmp.Or(strings.Join(hops, ", "), string(r.Type)))
	}
}

// NodeTable is the main routing table of one node's kernel.
type NodeTable struct {
	Node   string      `json:"node"`
	Routes List[Route] `json:"routes"`
}

// NodeTables is the source of the nodes' main routing tables.
var NodeTables = perNode("routes of the nodes", tableReader, func(t NodeTable) string { return t.Node },
	func(s *Snapshot) *[]NodeTable { return &s.NodeTables })

func (t NodeTable) parts() []part {
	return []part{listPart("routes of "+t.Node, t.Routes, routeState(Kernel, t.Node))}
}

func tableReader(node string, m Machine) func(context.Context) NodeTable {
	return func(ctx context.Context) NodeTable {
		return NodeTable{Node: node, Routes: list(ctx, func(ctx context.Context) ([]Route, error) { return routesOf(ctx, m) })}
	}
}
