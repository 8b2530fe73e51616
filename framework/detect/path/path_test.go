package path

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

var members = map[netip.Addr]string{
	netip.MustParseAddr("10.4.36.10"): "outside", netip.MustParseAddr("10.4.94.239"): "tor1",
	netip.MustParseAddr("10.4.94.21"): "master2", netip.MustParseAddr("10.4.94.23"): "node1",
}

// table is the routes of a router: to a range over next hops, and no default route.
func table(hops ...string) snapshot.Router {
	routes := []snapshot.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: snapshot.RouteUnreachable}}
	if len(hops) > 0 {
		r := snapshot.Route{Prefix: netip.MustParsePrefix("10.5.115.0/24"), Type: snapshot.RouteUnicast}
		for _, h := range hops {
			r.NextHops = append(r.NextHops, snapshot.NextHop{Address: netip.MustParseAddr(h), Interface: "eth0"})
		}
		routes = append(routes, r)
	}
	return snapshot.Router{Name: "tor1", Routes: snapshot.List[snapshot.Route]{Read: true, Items: routes}}
}

func node1(hop snapshot.NextHop) []snapshot.NodeTable {
	return []snapshot.NodeTable{{Node: "node1", Routes: snapshot.List[snapshot.Route]{Read: true, Items: []snapshot.Route{
		{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Type: snapshot.RouteUnicast, NextHops: []snapshot.NextHop{hop}},
	}}}}
}

func TestTrace(t *testing.T) {
	back := snapshot.NextHop{Address: netip.MustParseAddr("10.4.94.239"), Interface: "eth0"}
	one := func(routers ...snapshot.Router) *snapshot.Snapshot { return &snapshot.Snapshot{Routers: routers} }
	for _, test := range []struct {
		name              string
		tables            *snapshot.Snapshot
		hops, unread, end string
	}{
		{"nothing was read", nil, "outside tor1 master2", "outside tor1", ""},
		{"to the end", one(table("10.4.94.21")), "outside tor1 master2", "outside", ""},
		{"no route", one(table()), "outside tor1", "outside", "tor1 has no route to 10.5.115.2 (unreachable 0.0.0.0/0)"},
		{"to another node", one(table("10.4.94.23")), "outside tor1 node1", "outside", "tor1 forwards them to node1 instead of master2; the routes of node1 were not read"},
		{"a loop", &snapshot.Snapshot{Routers: []snapshot.Router{table("10.4.94.23")}, NodeTables: node1(back)},
			"outside tor1 node1 tor1", "outside", "they loop between node1 and tor1"},
		{"a device", &snapshot.Snapshot{Routers: []snapshot.Router{table("10.4.94.23")}, NodeTables: node1(snapshot.NextHop{Interface: "cni0"})},
			"outside tor1 node1", "outside", "node1 takes 10.5.115.2 as directly connected"},
		{"two next hops", one(table("10.4.94.21", "10.4.94.23")), "outside tor1 master2, outside tor1 node1", "outside, outside",
			", tor1 forwards them to node1 instead of master2; the routes of node1 were not read"},
		{"an unknown next hop", one(table("10.4.94.99")), "outside tor1", "outside", "tor1 forwards 10.5.115.2 to 10.4.94.99, which no member of the topology has"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var hops, unread, ends []string
			for _, p := range (Tracer{test.tables, members}).Trace([]string{"outside", "tor1", "master2"}, netip.MustParseAddr("10.5.115.2")) {
				hops, unread, ends = append(hops, strings.Join(p.Hops, " ")), append(unread, strings.Join(p.Unread, " ")), append(ends, p.End)
			}
			got := []string{strings.Join(hops, ", "), strings.Join(unread, ", "), strings.Join(ends, ", ")}
			must.Equal(t, "", []string{test.hops, test.unread, test.end}, got)
		})
	}
}

func TestService(t *testing.T) {
	target, server := netip.MustParseAddrPort("10.96.0.101:7007"), netip.MustParseAddr("10.30.64.9")
	with := func(mode string, servers ...snapshot.RealServer) *snapshot.Snapshot {
		return &snapshot.Snapshot{
			Services:       snapshot.List[snapshot.Service]{Read: true, Items: []snapshot.Service{{Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{target.Addr()}}}},
			EndpointSlices: snapshot.List[snapshot.EndpointSlice]{Read: true, Items: []snapshot.EndpointSlice{{Namespace: "default", Service: "web", Ready: []netip.Addr{server}}}},
			Proxies: []snapshot.Proxy{{Node: "edge1", Read: true, Mode: mode, Table: []snapshot.VirtualServer{
				{Protocol: "UDP", Address: target}, {Protocol: "TCP", Address: target, Servers: servers},
			}}},
		}
	}
	gone := snapshot.RealServer{Address: netip.MustParseAddrPort("10.30.64.4:7007"), Weight: 1}
	right := snapshot.RealServer{Address: netip.AddrPortFrom(server, 7007), Weight: 1}
	missing := with("ipvs")
	missing.Proxies[0].Table = nil
	for _, test := range []struct {
		name string
		s    *snapshot.Snapshot
		why  string
	}{
		{"nothing was read", nil, ""},
		{"not by IPVS", with("iptables"), ""},
		{"a ready endpoint", with("ipvs", gone, right), ""},
		{"no service", missing, "edge1 has no IPVS service 10.96.0.101:7007 (default/web)"},
		{"no server", with("ipvs"), "edge1 has no real server for 10.96.0.101:7007 (default/web) in IPVS; ready endpoints: [10.30.64.9]"},
		{"one that is gone", with("ipvs", gone),
			"edge1 forwards 10.96.0.101:7007 (default/web) to 10.30.64.4:7007 by IPVS; ready endpoints: [10.30.64.9]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "", test.why, (Tracer{Tables: test.s}).Service("edge1", target, "tcp"))
		})
	}
}
