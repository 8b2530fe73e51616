package nodedrain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// The detectors and checks below are given the incident's own snapshots.

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// looked makes a run whose detectors have just seen a snapshot.
func looked(at snapshot.Snapshot) *framework.Run {
	return &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return at }}
}

// allocated is a snapshot of both allocations. Each row is node, Node.spec's
// range and CiliumNode's, which may be empty: it has none.
func allocated(rows ...[3]string) snapshot.Snapshot {
	var s snapshot.Snapshot
	for _, row := range rows {
		node, use := snapshot.Node{Name: row[0], PodCIDRs: []netip.Prefix{prefix(row[1])}}, snapshot.CiliumNode{Name: row[0]}
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
		got := answer(allocationsAreTheIncidents(t.Context(), looked(test.at.Only(allocations...))))
		must.Equal(t, test.name, answer(test.saw == "", test.saw, nil), got)
	}
	holds, _, _ := allocationsAreTheIncidents(t.Context(), looked(snapshot.Snapshot{}))
	must.Equal(t, "holds without a snapshot", false, holds)
}

// answer is what a check says.
func answer(holds bool, saw string, err error) string {
	return fmt.Sprintf("%t %q %v", holds, saw, err)
}

// The routers must send each node its own range, and no other range.
func TestRoutersFollow(t *testing.T) {
	router := func(name string, rows ...allocation) snapshot.Router {
		r := snapshot.Router{Name: name, Routes: snapshot.List[snapshot.Route]{Read: true}}
		for _, row := range rows {
			address, _ := lab.AddressOn(row.node, nodeNet.Name)
			r.Routes.Items = append(r.Routes.Items, snapshot.Route{
				Prefix: row.spec, Protocol: snapshot.RouteBGP, NextHops: []snapshot.NextHop{{Address: address}},
			})
		}
		return r
	}
	for _, test := range []struct {
		name    string
		nodes   []string
		rangeOf func(allocation) netip.Prefix
		rows    []allocation // of the second router
		saw     string       // empty: it holds
	}{
		{"all announced", all, specOf, table, ""},
		{"the orphan withdrawn", staying, specOf, table[:3], "tor1 has 10.5.115.0/24 via [10.4.94.23]"},
		{"the ranges in use", all, useOf, table, "tor1 sends 10.5.112.0/24 to [10.4.94.32], not to [10.4.94.23]"},
	} {
		run := looked(snapshot.Snapshot{Routers: []snapshot.Router{router("tor1", table...), router("tor2", test.rows...)}}.Only(routes...))
		holds, saw, err := routersFollow(test.rangeOf, test.nodes)(t.Context(), run)
		first, _, _ := strings.Cut(saw, "; ")
		must.Equal(t, test.name, answer(test.saw == "", test.saw, nil), answer(holds, first, err))
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

// Versions that are built whole run whole. Older versions have the images of the slices.
func TestFormOfVersions(t *testing.T) {
	for version, want := range map[string]framework.Form{
		"1.11.4": framework.Slice, "1.12.0": framework.Slice, "1.14.19": framework.Slice,
		"1.15.19": framework.Whole, "1.17.8": framework.Whole, "1.20.2": framework.Whole,
	} {
		v := Scenario.At(map[string]string{"cilium": version})
		must.Equal(t, version, want, v.Form)
		for _, image := range release.Images(version) { // both forms have the vendor's names
			if !slices.Contains(v.Images, image) {
				t.Errorf("%s lacks %s: %q", version, image, v.Images)
			}
		}
		must.Equal(t, v.Components, version, v.Components["cilium"])
	}
}

// Whole Cilium gets the incident's mode, and the lab's settings keep it.
func TestWholeIncident(t *testing.T) {
	server := netip.MustParseAddrPort("10.4.94.32:6443")
	whole := wholeIncident("1.19.3")
	for path, want := range map[string]any{
		"ipam.mode": "cluster-pool", "routingMode": "native", "autoDirectNodeRoutes": true, "enableIPv4Masquerade": false,
		"bgpControlPlane.enabled": true,
	} {
		got, _ := chart.Get(whole.Values, path)
		must.Equal(t, path, want, got)
	}
	set := map[string]any{}
	for _, s := range whole.Settings(lab, server) {
		set[s.Path] = s.Value
		if _, ours := chart.Get(whole.Values, s.Path); ours {
			t.Errorf("the lab sets %s, which the incident has as well", s.Path)
		}
	}
	for path, want := range map[string]any{ // the agents reach the API server, and the ranges are the incident's
		"k8sServiceHost": "10.4.94.32", "k8sServicePort": int64(6443),
		"ipv4NativeRoutingCIDR": podCIDR.String(), "ipam.operator.clusterPoolIPv4MaskSize": int64(24),
	} {
		must.Equal(t, path, want, set[path])
	}
	if node := whole.Values["operator"].(map[string]any)["nodeSelector"].(map[string]any)["kubernetes.io/hostname"]; node == removed {
		t.Errorf("the operator runs on %s, which goes away", node)
	}
	agents, _ := chart.Get(whole.WithoutAgents().Values, "agent")
	must.Equal(t, "agent, without agents", false, agents)
	_, there := chart.Get(whole.Values, "agent")
	must.Equal(t, "the release itself was changed", false, there)
	p := release.PeeringOf(lab)
	want := []netip.Addr{netip.MustParseAddr("10.4.94.239"), netip.MustParseAddr("10.4.94.238")}
	if !slices.Equal(p.Routers, want) || p.RoutersASN != 64524 || p.ASN != 64513 || p.GracefulRestart {
		t.Errorf("peering is %+v", p)
	}
}
