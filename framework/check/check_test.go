package check_test

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

var nodes = topology.NewNetwork("nodes", "10.20.4.0/24")

// lab has a router, two nodes and a host.
var lab = topology.Topology{
	Clusters: []topology.Cluster{{Nodes: []topology.Node{
		{Name: "master", Links: []topology.Link{nodes.At("10.20.4.11")}}, {Name: "worker", Links: []topology.Link{nodes.At("10.20.4.12")}},
	}}},
	Routers: []topology.Router{{Name: "tor"}},
	Hosts:   []topology.Host{{Name: "outside", Links: []topology.Link{topology.NewNetwork("uplink", "10.20.5.0/24").At("10.20.5.10")}}},
}

func TestRoutes(t *testing.T) {
	pods, hop := netip.MustParsePrefix("10.20.64.0/20"), netip.MustParseAddr("10.20.4.11")
	one := netip.MustParsePrefix("10.20.65.0/24")
	route := func(prefix netip.Prefix, protocol snapshot.RouteProtocol) snapshot.Route {
		return snapshot.Route{Prefix: prefix, Protocol: protocol, NextHops: []snapshot.NextHop{{Address: hop}}}
	}
	bgp, static := route(one, snapshot.RouteBGP), route(one, snapshot.RouteStatic)
	for _, test := range []struct {
		name   string
		routes []snapshot.Route
		via    map[netip.Prefix][]string
		saw    string // empty: it holds
	}{
		{"none is wanted", []snapshot.Route{route(netip.MustParsePrefix("10.20.4.0/24"), snapshot.RouteBGP), route(netip.MustParsePrefix("0.0.0.0/0"), snapshot.RouteBGP), static}, nil, ""},
		{"none is wanted, one is left", []snapshot.Route{bgp}, nil, "tor has 10.20.65.0/24 via [10.20.4.11]"},
		{"the wanted one", []snapshot.Route{bgp}, map[netip.Prefix][]string{one: {"master"}}, ""},
		{"one of two next hops is missing", []snapshot.Route{bgp}, map[netip.Prefix][]string{one: {"worker", "master"}}, "tor sends 10.20.65.0/24 to [10.20.4.11], not to [10.20.4.11 10.20.4.12]"},
		{"the wanted one is static", []snapshot.Route{static}, map[netip.Prefix][]string{one: {"master"}}, "tor sends 10.20.65.0/24 to [], not to [10.20.4.11]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor"}}}
			at.Routers[0].Routes.Read, at.Routers[0].Routes.Items = true, test.routes
			r := &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return at }}
			holds, saw, err := check.Routes(pods, "nodes", test.via)(t.Context(), r)
			if err != nil || holds != (test.saw == "") || saw != test.saw {
				t.Errorf("%v, %q, %v; want %q", holds, saw, err, test.saw)
			}
		})
	}
	unread := &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor"}}} }}
	if holds, _, err := check.Routes(pods, "nodes", nil)(t.Context(), unread); holds || err == nil {
		t.Errorf("it holds for routes that were not read: %v, %v", holds, err)
	}
}

// On a dual lab the route of IPv6 is wanted beside each of IPv4, and another one is no less wrong.
func TestRoutesOfBothFamilies(t *testing.T) {
	dual, pods, one := lab, netip.MustParsePrefix("10.20.64.0/20"), netip.MustParsePrefix("10.20.65.0/24")
	dual.Dual = true
	route := func(f topology.Family, prefix netip.Prefix) snapshot.Route {
		return snapshot.Route{
			Prefix: f.Prefix(prefix), Protocol: snapshot.RouteBGP, NextHops: []snapshot.NextHop{{Address: f.Addr(netip.MustParseAddr("10.20.4.11"))}},
		}
	}
	both := []snapshot.Route{route(topology.IPv4, one), route(topology.IPv6, one)}
	for _, test := range []struct {
		routes []snapshot.Route
		saw    string
	}{
		{both, ""},
		{both[:1], "tor sends fd5c:3f1e:a2d7::a14:4100/120 to [], not to [fd5c:3f1e:a2d7::a14:40b]"},
		{append(both, route(topology.IPv6, netip.MustParsePrefix("10.20.66.0/24"))), "tor has fd5c:3f1e:a2d7::a14:4200/120 via [fd5c:3f1e:a2d7::a14:40b]"},
	} {
		at := snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor", Routes: snapshot.List[snapshot.Route]{Read: true, Items: test.routes}}}}
		r := &framework.Run{Topology: dual, Snapshot: func() snapshot.Snapshot { return at }}
		holds, saw, err := check.Routes(pods, "nodes", map[netip.Prefix][]string{one: {"master"}})(t.Context(), r)
		if err != nil || holds != (test.saw == "") || saw != test.saw {
			t.Errorf("%v, %q, %v; want %q", holds, saw, err, test.saw)
		}
	}
}

func TestHopsWithoutProbes(t *testing.T) {
	r := &framework.Run{Topology: lab, Timelines: func() []probe.Timeline { return nil }}
	if holds, saw, _ := check.Hops(framework.HostEndpoint(lab.Hosts[0]), 3)(t.Context(), r); holds || saw != "no probe from outside runs" {
		t.Errorf("%v, %q", holds, saw)
	}
}

// A prefix is wanted by the address that the member has in the lab.
func TestRoutesByAnUnknownMember(t *testing.T) {
	r := &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{} }}
	via := map[netip.Prefix][]string{netip.MustParsePrefix("10.20.65.0/24"): {"worker9"}}
	if holds, _, err := check.Routes(netip.MustParsePrefix("10.20.64.0/20"), "nodes", via)(t.Context(), r); holds || err == nil {
		t.Errorf("it holds for a member that is not in the lab: %v, %v", holds, err)
	}
}

func TestSessions(t *testing.T) {
	session := func(address string) snapshot.Neighbor {
		return snapshot.Neighbor{Address: netip.MustParseAddr(address), State: snapshot.SessionEstablished}
	}
	for _, test := range []struct {
		name    string
		routers []snapshot.Router
		saw     string // empty: it holds
		err     bool
	}{
		{"as wanted", []snapshot.Router{{Name: "tor", Neighbors: snapshot.List[snapshot.Neighbor]{Read: true, Items: []snapshot.Neighbor{session("10.20.4.11")}}}}, "", false},
		{"none", []snapshot.Router{{Name: "tor", Neighbors: snapshot.List[snapshot.Neighbor]{Read: true}}}, "tor has a session with master: false", false},
		{"one too many", []snapshot.Router{{Name: "tor", Neighbors: snapshot.List[snapshot.Neighbor]{Read: true, Items: []snapshot.Neighbor{session("10.20.4.11"), session("10.20.4.12")}}}}, "tor has a session with worker: true", false},
		{"not read", []snapshot.Router{{Name: "tor"}}, "", true},
		{"no router", nil, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{Routers: test.routers} }}
			holds, saw, err := check.Sessions("nodes", []string{"master", "worker"}, []string{"master"})(t.Context(), r)
			if holds != (test.saw == "" && !test.err) || saw != test.saw || (err != nil) != test.err {
				t.Errorf("%v, %q, %v; want %q", holds, saw, err, test.saw)
			}
		})
	}
}
