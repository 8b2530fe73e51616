package check_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// notKnown is what says returns if the check returns an error.
const notKnown = `holds: false, saw: "", known: false`

var (
	nodes     = topology.NewNetwork("nodes", "10.20.4.0/24")
	pods, one = netip.MustParsePrefix("10.20.64.0/20"), netip.MustParsePrefix("10.20.65.0/24")
)

// lab has two nodes, a host and these routers.
func lab(routers ...string) topology.Topology {
	t := topology.Topology{
		Clusters: []topology.Cluster{{Nodes: []topology.Node{
			{Name: "master", Links: []topology.Link{nodes.At("10.20.4.11")}}, {Name: "worker", Links: []topology.Link{nodes.At("10.20.4.12")}},
		}}},
		Hosts: []topology.Host{{Name: "outside", Links: []topology.Link{topology.NewNetwork("uplink", "10.20.5.0/24").At("10.20.5.10")}}},
	}
	for _, name := range routers {
		t.Routers = append(t.Routers, topology.Router{Name: name})
	}
	return t
}

// fib are the BGP routes of a router's kernel, each a prefix and its next hops.
func fib(name string, routes ...[]string) snapshot.Router {
	r := snapshot.Router{Name: name, Routes: snapshot.List[snapshot.Route]{Read: true}}
	for _, words := range routes {
		route := snapshot.Route{Prefix: netip.MustParsePrefix(words[0]), Protocol: snapshot.RouteBGP}
		for _, hop := range words[1:] {
			route.NextHops = append(route.NextHops, snapshot.NextHop{Address: netip.MustParseAddr(hop)})
		}
		r.Routes.Items = append(r.Routes.Items, route)
	}
	return r
}

func static(r snapshot.Router) snapshot.Router {
	r.Routes.Items[0].Protocol = snapshot.RouteStatic
	return r
}

// says returns what the check saw, "" if it holds, or notKnown.
func says(t *testing.T, check framework.Condition, lab topology.Topology, routers ...snapshot.Router) string {
	at := snapshot.Snapshot{Routers: routers}
	holds, saw, err := check(t.Context(), &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return at }})
	if err != nil || holds != (saw == "") {
		return fmt.Sprintf("holds: %t, saw: %q, known: %t", holds, saw, err == nil)
	}
	return saw
}

func TestRoutes(t *testing.T) {
	toOne, other, fallback := []string{"10.20.65.0/24", "10.20.4.11"}, []string{"10.20.4.0/24", "10.20.4.11"}, []string{"0.0.0.0/0", "10.20.4.11"}
	for _, test := range []struct {
		name string
		tor  snapshot.Router
		via  []string // the wanted next hops of the prefix; none: it is not wanted
		saw  string   // empty: it holds
	}{
		{"none is wanted", fib("tor", other, fallback), nil, ""},
		{"none is wanted, and a static one is there", static(fib("tor", toOne)), nil, ""},
		{"none is wanted, one is left", fib("tor", toOne), nil, "tor has 10.20.65.0/24 via [10.20.4.11]"},
		{"the wanted one", fib("tor", toOne), []string{"master"}, ""},
		{"the wanted one, beside other ranges", fib("tor", toOne, other, fallback), []string{"master"}, ""},
		{"it is lost", fib("tor"), []string{"master"}, "tor sends 10.20.65.0/24 to [], not to [10.20.4.11]"},
		{"it is static", static(fib("tor", toOne)), []string{"master"}, "tor sends 10.20.65.0/24 to [], not to [10.20.4.11]"},
		{"one of two next hops is missing", fib("tor", toOne), []string{"worker", "master"},
			"tor sends 10.20.65.0/24 to [10.20.4.11], not to [10.20.4.11 10.20.4.12]"},
		{"a next hop more", fib("tor", []string{"10.20.65.0/24", "10.20.4.12", "10.20.4.11"}), []string{"master"},
			"tor sends 10.20.65.0/24 to [10.20.4.11 10.20.4.12], not to [10.20.4.11]"},
		{"a range within it", fib("tor", toOne, []string{"10.20.65.128/25", "10.20.4.12"}), []string{"master"},
			"tor has 10.20.65.128/25 via [10.20.4.12]"},
	} {
		via := map[netip.Prefix][]string{}
		if test.via != nil {
			via[one] = test.via
		}
		must.Equal(t, test.name, test.saw, says(t, check.Routes(pods, "nodes", via), lab("tor"), test.tor))
	}
	none, two := check.Routes(pods, "nodes", nil), lab("tor1", "tor2")
	must.Equal(t, "one of two", "tor2 has 10.20.65.0/24 via [10.20.4.11]", says(t, none, two, fib("tor1"), fib("tor2", toOne)))
	for name, routers := range map[string][]snapshot.Router{
		"a router that is missing": {fib("tor1")}, "a router that did not answer": {fib("tor1"), {Name: "tor2"}}, "no snapshot": nil,
	} {
		must.Equal(t, name, notKnown, says(t, none, two, routers...))
	}
	// A prefix is wanted by the address that the member has in the lab.
	unknown := check.Routes(pods, "nodes", map[netip.Prefix][]string{one: {"worker9"}})
	must.Equal(t, "a member that is not in the lab", notKnown, says(t, unknown, two))
}

// On a dual lab each IPv4 route needs its IPv6 counterpart, and other IPv6 routes are wrong.
func TestRoutesOfBothFamilies(t *testing.T) {
	dual := lab("tor")
	dual.Dual = true
	v4, v6 := []string{"10.20.65.0/24", "10.20.4.11"}, []string{"fd5c:3f1e:a2d7::a14:4100/120", "fd5c:3f1e:a2d7::a14:40b"}
	wanted := check.Routes(pods, "nodes", map[netip.Prefix][]string{one: {"master"}})
	for want, tor := range map[string]snapshot.Router{
		"": fib("tor", v4, v6),
		"tor sends fd5c:3f1e:a2d7::a14:4100/120 to [], not to [fd5c:3f1e:a2d7::a14:40b]": fib("tor", v4),
		"tor has fd5c:3f1e:a2d7::a14:4200/120 via [fd5c:3f1e:a2d7::a14:40b]":             fib("tor", v4, v6, []string{"fd5c:3f1e:a2d7::a14:4200/120", v6[1]}),
	} {
		must.Equal(t, "it says", want, says(t, wanted, dual, tor))
	}
}

func TestHops(t *testing.T) {
	timeline := func(from, to string, ttl map[uint8]int, sources ...string) probe.Timeline {
		line := probe.Timeline{Record: probe.Record{Probe: probe.Probe{Name: from + "->" + to, From: from, To: to}, RequestTTL: ttl}}
		for _, s := range sources {
			line.Sources = append(line.Sources, probe.Source{Address: netip.MustParseAddr(s)})
		}
		return line
	}
	const outside = "10.20.5.10"
	good := timeline("outside", "master", map[uint8]int{61: 500}, outside)
	for _, test := range []struct {
		name  string
		lines []probe.Timeline
		saw   string // empty: it holds
	}{
		{"over the router and two nodes", []probe.Timeline{good}, ""},
		{"others are ignored", []probe.Timeline{good, timeline("master", "outside", map[uint8]int{1: 1}, "1.2.3.4")}, ""},
		{"past the router", []probe.Timeline{good, timeline("outside", "worker", map[uint8]int{61: 9, 64: 3}, outside)},
			"3 packets of outside->worker crossed 0 hops, not 3"},
		{"through a NAT", []probe.Timeline{good, timeline("outside", "worker", map[uint8]int{61: 9}, outside, "10.20.4.1")},
			"packets of outside->worker come from 10.20.4.1"},
		{"never", []probe.Timeline{good, timeline("outside", "worker", nil)}, "no packet of outside->worker has arrived"},
		{"no probe at all", nil, "no probe from outside runs"},
	} {
		r := &framework.Run{Topology: lab(), Timelines: func() []probe.Timeline { return test.lines }}
		holds, saw, err := check.Hops(framework.HostEndpoint(r.Topology.Hosts[0]), 3)(t.Context(), r)
		must.Equal(t, test.name, []any{test.saw == "", test.saw, nil}, []any{holds, saw, err})
	}
}

func TestSessions(t *testing.T) {
	with := func(addresses ...string) snapshot.Router {
		r := snapshot.Router{Name: "tor", Neighbors: snapshot.List[snapshot.Neighbor]{Read: true}}
		for _, a := range addresses {
			r.Neighbors.Items = append(r.Neighbors.Items, snapshot.Neighbor{Address: netip.MustParseAddr(a), State: snapshot.SessionEstablished})
		}
		return r
	}
	for _, test := range []struct {
		name    string
		routers []snapshot.Router
		says    string
	}{
		{"as wanted", []snapshot.Router{with("10.20.4.11")}, ""},
		{"none", []snapshot.Router{with()}, "tor has a session with master: false"},
		{"one too many", []snapshot.Router{with("10.20.4.11", "10.20.4.12")}, "tor has a session with worker: true"},
		{"not read", []snapshot.Router{{Name: "tor"}}, notKnown},
		{"no router", nil, notKnown},
	} {
		must.Equal(t, test.name, test.says, says(t, check.Sessions("nodes", []string{"master", "worker"}, []string{"master"}), lab("tor"), test.routers...))
	}
}
