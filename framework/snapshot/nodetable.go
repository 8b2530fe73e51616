package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/lab/rtnl"
)

// NodeTable is the main routing table of one node's kernel.
type NodeTable struct {
	Node   string      `json:"node"`
	Routes List[Route] `json:"routes"`
}

// NodeTables is the source of the nodes' main routing tables.
var NodeTables = perNode("routes of the nodes", 0, tableReader, func(s *Snapshot) *[]NodeTable { return &s.NodeTables })

func (t NodeTable) names(to *Names) { to.Nodes[t.Node] = true }

func (t NodeTable) parts() []part {
	return []part{listPart("routes of "+t.Node, t.Routes, routeState(Kernel, t.Node))}
}

func tableReader(node string, m Machine) func(context.Context) NodeTable {
	return func(ctx context.Context) NodeTable {
		return NodeTable{Node: node, Routes: list(ctx, func(ctx context.Context) ([]Route, error) { return routesOf(ctx, m) })}
	}
}

// routesOf lists a node's IPv4 routes in order of prefix and metric.
func routesOf(ctx context.Context, m Machine) ([]Route, error) {
	var routes []Route
	err := inNetns(ctx, m, unix.NETLINK_ROUTE, func(_ string, h *netlink.Handle) error {
		links, err := rtnl.Dump(ctx, h.LinkList)
		if err != nil {
			return fmt.Errorf("listing links: %w", err)
		}
		names := map[int]string{}
		for _, l := range links {
			names[l.Attrs().Index] = l.Attrs().Name
		}
		// Without a filter the library leaves out all tables but main. A nil route
		// in place of an empty one is a panic in netlink 1.3.1.
		list, err := rtnl.Dump(ctx, func() ([]netlink.Route, error) {
			return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, 0)
		})
		if err != nil {
			return fmt.Errorf("listing routes: %w", err)
		}
		routes = make([]Route, 0, len(list))
		for _, r := range list {
			routes = append(routes, fromNetlink(r, names))
		}
		return nil
	})
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Metric, b.Metric))
	})
	return routes, err
}

// routeTypes are the names that ip(8) prints.
var routeTypes = map[int]RouteType{
	unix.RTN_UNICAST: RouteUnicast, unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_MULTICAST: "multicast",
	unix.RTN_BLACKHOLE: RouteBlackhole, unix.RTN_UNREACHABLE: RouteUnreachable, unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
}

func routeType(number int) RouteType {
	return cmp.Or(routeTypes[number], RouteType(strconv.Itoa(number)))
}

func fromNetlink(n netlink.Route, names map[int]string) Route {
	r := Route{
		Prefix:   netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		Type:     routeType(n.Type),
		Protocol: RouteProtocol(n.Protocol.String()),
		Metric:   n.Priority,
		Source:   address(n.Src),
	}
	if n.Dst != nil {
		bits, _ := n.Dst.Mask.Size()
		r.Prefix = netip.PrefixFrom(address(n.Dst.IP), bits)
	}
	// A multipath route has no link of its own.
	if n.LinkIndex != 0 {
		r.NextHops = append(r.NextHops, NextHop{Address: address(n.Gw), Interface: names[n.LinkIndex]})
	}
	for _, hop := range n.MultiPath {
		r.NextHops = append(r.NextHops, NextHop{Address: address(hop.Gw), Interface: names[hop.LinkIndex]})
	}
	slices.SortFunc(r.NextHops, func(a, b NextHop) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Interface, b.Interface))
	})
	return r
}
