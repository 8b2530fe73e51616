package nodedrain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// The detectors and checks below are given the incident's own snapshots.

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// looked makes a run whose detectors have just seen a snapshot.
func looked(at snapshot.Snapshot, found ...detect.Finding) *framework.Run {
	return &framework.Run{
		Topology: lab,
		Snapshot: func() snapshot.Snapshot { return at },
		Findings: func() []detect.Finding { return found },
	}
}

// allocated is a snapshot of both allocations. Each row is node, Node.spec's
// range and CiliumNode's; an empty one is not there.
func allocated(rows ...[3]string) snapshot.Snapshot {
	var s snapshot.Snapshot
	for _, row := range rows {
		node, use := snapshot.Node{Name: row[0]}, snapshot.CiliumNode{Name: row[0]}
		if row[1] != "" {
			node.PodCIDRs = []netip.Prefix{prefix(row[1])}
		}
		if row[2] != "" {
			use.PodCIDRs = []netip.Prefix{prefix(row[2])}
		}
		s.Nodes.Items = append(s.Nodes.Items, node)
		s.CiliumNodes.Items = append(s.CiliumNodes.Items, use)
	}
	return s
}

// theIncident is the table as it was in production.
var theIncident = [][3]string{
	{"master1", "10.5.112.0/24", "10.5.113.0/24"},
	{"master2", "10.5.114.0/24", "10.5.115.0/24"},
	{"master3", "10.5.113.0/24", "10.5.114.0/24"},
	{"node1", "10.5.115.0/24", "10.5.112.0/24"},
}

// Both controllers hand out the lowest free range: the table follows from the orders of creation.
func TestTableFollowsFromTheOrders(t *testing.T) {
	spec, use := map[string]netip.Prefix{}, map[string]netip.Prefix{}
	for i, n := range lab.Clusters[0].Nodes {
		spec[n.Name] = nth(i)
	}
	for i, name := range ciliumOrder {
		use[name] = nth(i)
	}
	for _, row := range table {
		if spec[row.node] != row.spec || use[row.node] != row.use {
			t.Errorf("%s gets %s and %s, the incident's are %s and %s", row.node, spec[row.node], use[row.node], row.spec, row.use)
		}
	}
}

// nth is the pod range that is handed out after n others.
func nth(n int) netip.Prefix {
	base := podCIDR.Addr().As4()
	base[2] += byte(n)
	return netip.PrefixFrom(netip.AddrFrom4(base), lab.Clusters[0].NodeMask)
}

func TestAllocationsAreTheIncidents(t *testing.T) {
	changed := func(i int, row [3]string) [][3]string {
		rows := slices.Clone(theIncident)
		rows[i] = row
		return rows
	}
	for _, test := range []struct {
		name string
		at   snapshot.Snapshot
		saw  string // empty: it holds
	}{
		{"they are", allocated(theIncident...), ""},
		{"a node whose allocations agree by chance", allocated(changed(1, [3]string{"master2", "10.5.115.0/24", "10.5.115.0/24"})...),
			"master2 has [10.5.115.0/24] in Node.spec and uses [10.5.115.0/24], not 10.5.114.0/24 and 10.5.115.0/24"},
		{"a node without a CiliumNode's range", allocated(changed(3, [3]string{"node1", "10.5.115.0/24", ""})...),
			"node1 has [10.5.115.0/24] in Node.spec and uses [], not 10.5.115.0/24 and 10.5.112.0/24"},
		{"a node that is not there", allocated(theIncident[:3]...),
			"node1 has [] in Node.spec and uses [], not 10.5.115.0/24 and 10.5.112.0/24"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := answer(allocationsAreTheIncidents(t.Context(), looked(test.at.Only(allocations...))))
			must.Equal(t, "it holds", answer(test.saw == "", test.saw, nil), got)
		})
	}
	holds, _, _ := allocationsAreTheIncidents(t.Context(), looked(snapshot.Snapshot{}))
	must.Equal(t, "holds without a snapshot", false, holds)
}

// answer is what a check says.
func answer(holds bool, saw string, err error) string {
	return fmt.Sprintf("%t %q %v", holds, saw, err)
}

func nextHop(addr string) snapshot.NextHop {
	return snapshot.NextHop{Address: netip.MustParseAddr(addr)}
}

// fib makes a router's kernel routes. Each is a prefix and its next hops.
func fib(name string, routes ...[]string) snapshot.Router {
	r := snapshot.Router{Name: name}
	r.Routes.Read = true
	for _, words := range routes {
		route := snapshot.Route{Prefix: prefix(words[0]), Protocol: snapshot.RouteBGP}
		for _, hop := range words[1:] {
			route.NextHops = append(route.NextHops, nextHop(hop))
		}
		r.Routes.Items = append(r.Routes.Items, route)
	}
	return r
}

func TestRoutersFollow(t *testing.T) {
	before := [][]string{
		{"10.5.112.0/24", "10.4.94.32"}, {"10.5.113.0/24", "10.4.94.31"},
		{"10.5.114.0/24", "10.4.94.21"}, {"10.5.115.0/24", "10.4.94.23"},
	}
	after := before[:3]
	with := func(more ...[]string) [][]string { return append(slices.Clone(after), more...) }
	static := fib("tor2", with([]string{"10.5.115.0/24", "10.4.94.21"})...)
	static.Routes.Items[3].Protocol = snapshot.RouteStatic
	for _, test := range []struct {
		name    string
		nodes   []string
		routers []snapshot.Router
		saw     string // empty: it holds
	}{
		{"all announced", all, []snapshot.Router{fib("tor1", before...), fib("tor2", before...)}, ""},
		{"the orphan withdrawn", staying, []snapshot.Router{fib("tor1", after...), fib("tor2", after...)}, ""},
		{"other ranges are ignored", staying,
			[]snapshot.Router{fib("tor1", with([]string{"10.4.36.0/24", "10.4.94.1"}, []string{"0.0.0.0/0", "10.4.94.1"})...), fib("tor2", after...)}, ""},
		{"a static route is no announcement", staying, []snapshot.Router{fib("tor1", after...), static}, ""},
		{"one router keeps the orphan", staying, []snapshot.Router{fib("tor1", after...), fib("tor2", before...)},
			"tor2 has 10.5.115.0/24 via [10.4.94.23]"},
		{"one router has lost too much", staying, []snapshot.Router{fib("tor1", after...), fib("tor2", after[1:]...)},
			"tor2 sends 10.5.112.0/24 to [], not to [10.4.94.32]"},
		{"two next hops", staying,
			[]snapshot.Router{fib("tor1", after...), fib("tor2", []string{"10.5.112.0/24", "10.4.94.32", "10.4.94.21"}, after[1], after[2])},
			"tor2 sends 10.5.112.0/24 to [10.4.94.21 10.4.94.32], not to [10.4.94.32]"},
		{"a range within a range", staying, []snapshot.Router{fib("tor1", after...), fib("tor2", with([]string{"10.5.112.128/25", "10.4.94.21"})...)},
			"tor2 has 10.5.112.128/25 via [10.4.94.21]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := looked(snapshot.Snapshot{Routers: test.routers}.Only(routes...))
			must.Equal(t, "it holds", answer(test.saw == "", test.saw, nil), answer(routersFollow(specOf, test.nodes)(t.Context(), run)))
		})
	}
	for name, unread := range map[string][]snapshot.Router{
		"a router that is missing":     {fib("tor1", after...)},
		"a router that did not answer": {fib("tor1", after...), {Name: "tor2"}},
		"no snapshot":                  nil,
	} {
		t.Run(name, func(t *testing.T) {
			holds, _, err := routersFollow(specOf, staying)(t.Context(), looked(snapshot.Snapshot{Routers: unread}.Only(routes...)))
			if holds || err == nil {
				t.Errorf("%v, %v", holds, err)
			}
		})
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
	const outside = "10.4.36.10"
	good := timeline("outside", "master1", map[uint8]int{61: 500}, outside)
	for _, test := range []struct {
		name  string
		lines []probe.Timeline
		saw   string // empty: it holds
	}{
		{"over the router and two nodes", []probe.Timeline{good}, ""},
		{"others are ignored", []probe.Timeline{good, timeline("master1", "outside", map[uint8]int{1: 1}, "1.2.3.4")}, ""},
		{"past the router", []probe.Timeline{good, timeline("outside", "master2", map[uint8]int{61: 9, 64: 3}, outside)},
			"3 packets of outside->master2 crossed 0 hops, not 3"},
		{"through a NAT", []probe.Timeline{good, timeline("outside", "master2", map[uint8]int{61: 9}, outside, "10.4.94.1")},
			"packets of outside->master2 come from 10.4.94.1"},
		{"never", []probe.Timeline{good, timeline("outside", "master2", nil)}, "no packet of outside->master2 has arrived"},
		{"no probe at all", nil, "no probe from outside runs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := looked(snapshot.Snapshot{})
			run.Timelines = func() []probe.Timeline { return test.lines }
			must.Equal(t, "it holds", answer(test.saw == "", test.saw, nil), answer(hops(3)(t.Context(), run)))
		})
	}
}

// The parameter changes the ToRs, their drawing and the components of each variant, and
// leaves the scenario itself alone.
func TestRouterParameter(t *testing.T) {
	for _, kind := range topology.RouterKinds {
		s := must.Get(Scenario.Set(map[string]string{"router": string(kind)}))(t)
		must.NoError(t, s.Validate())
		other := kind != topology.GoBGP
		for _, r := range s.Topology.Routers {
			must.Equal(t, r.Name, map[bool]topology.RouterKind{true: kind}[other], r.Kind)
		}
		must.Equal(t, s.Incident.Diagram, !other, strings.Contains(s.Incident.Diagram, "GoBGP"))
		for _, v := range append(slices.Clone(s.Variants), s.At(map[string]string{"cilium": affected})) {
			_, has := v.Components[string(kind)]
			must.Equal(t, v.Components, other, has)
		}
	}
	if lab.Routers[0].Kind != "" || Scenario.Topology.Routers[0].Kind != "" || !strings.Contains(Record.Diagram, "GoBGP") {
		t.Error("the scenario's own declaration was changed")
	}
	const want = `router "cisco": want one of ["gobgp" "frr" "bird"]`
	must.Equal(t, "", want, fmt.Sprint(must.Err(Scenario.Set(map[string]string{"router": "cisco"}))))
}
