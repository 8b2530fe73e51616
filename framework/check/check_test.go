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
		want   map[netip.Prefix]netip.Addr
		saw    string // empty: it holds
	}{
		{"none is wanted", []snapshot.Route{route(netip.MustParsePrefix("10.20.4.0/24"), snapshot.RouteBGP), route(netip.MustParsePrefix("0.0.0.0/0"), snapshot.RouteBGP), static}, nil, ""},
		{"none is wanted, one is left", []snapshot.Route{bgp}, nil, "tor has 10.20.65.0/24 via [10.20.4.11]"},
		{"the wanted one", []snapshot.Route{bgp}, map[netip.Prefix]netip.Addr{one: hop}, ""},
		{"the wanted one is static", []snapshot.Route{static}, map[netip.Prefix]netip.Addr{one: hop}, "tor sends 10.20.65.0/24 to [], not to 10.20.4.11"},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor"}}}
			at.Routers[0].Routes.Read, at.Routers[0].Routes.Items = true, test.routes
			r := &framework.Run{Snapshot: func() snapshot.Snapshot { return at }}
			holds, saw, err := check.Routes([]topology.Router{{Name: "tor"}}, pods, test.want)(t.Context(), r)
			if err != nil || holds != (test.saw == "") || saw != test.saw {
				t.Errorf("%v, %q, %v; want %q", holds, saw, err, test.saw)
			}
		})
	}
	unread := &framework.Run{Snapshot: func() snapshot.Snapshot { return snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor"}}} }}
	if holds, _, err := check.Routes([]topology.Router{{Name: "tor"}}, pods, nil)(t.Context(), unread); holds || err == nil {
		t.Errorf("it holds for routes that were not read: %v, %v", holds, err)
	}
}

func TestHopsWithoutProbes(t *testing.T) {
	r := &framework.Run{Timelines: func() []probe.Timeline { return nil }}
	if holds, saw, _ := check.Hops(framework.Endpoint{Name: "outside"}, netip.Addr{}, 3)(t.Context(), r); holds || saw != "no probe from outside runs" {
		t.Errorf("%v, %q", holds, saw)
	}
}
