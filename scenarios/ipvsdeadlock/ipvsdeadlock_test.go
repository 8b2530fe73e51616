package ipvsdeadlock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// Whether variants run side by side or not, the steps are the same.
func TestStepsOnASmallMachine(t *testing.T) {
	small := Scenario.ForMemory(room - 1)
	if nodes := len(small.Topology.Clusters[0].Nodes); nodes != 2 || len(small.Variants[0].Nodes) > 0 {
		t.Errorf("%d nodes, variants with nodes of their own: %v", nodes, small.Variants[0].Nodes)
	}
	steps := func(s framework.Scenario) []string {
		return each.Of(engine.New(s, nil, engine.Options{}).Steps(), func(step engine.Step) string { return step.Scope + ": " + step.Name })
	}
	must.Equal(t, "steps differ", steps(Scenario), steps(small))
}

// Nodes share no names, addresses or ranges that each of them needs for itself.
func TestNodesShareNothing(t *testing.T) {
	owners := map[string]string{}
	for _, node := range edges {
		s := newTrial(proxy(node, fixed, kubeproxy.IPVS)).services
		for _, has := range []string{s.Held, s.HeldVIP.String(), fmt.Sprint("port ", s.Port), vip(node, web).String(), vip(node, idle).String(), vip(node, late).String()} {
			if owners[has] != "" {
				t.Errorf("%s is that of %s and %s", has, owners[has], node)
			}
			owners[has] = node
		}
	}
}

// A load under which 1.13.0 might not have hung proves nothing.
func TestTookEffect(t *testing.T) {
	good := standing{
		mode: kubeproxy.IPVS, walked: 3 * heldEndpoints, took: 2 * period, met: true, metSyncs: syncsMet, metChanges: int64(churn.Services),
		connections: connections, endpoints: heldEndpoints,
	}
	with := func(change func(*standing)) standing {
		s := good
		change(&s)
		return s
	}
	for _, c := range []struct {
		name   string
		proxy  kubeproxy.Proxy
		result standing
		saw    string // empty: it held
	}{
		{"it survived the load", proxy(edges[0], fixed, kubeproxy.IPVS), good, ""},
		{"it hung while the endpoints went onto the list", proxy(edges[0], affected, kubeproxy.IPVS),
			with(func(s *standing) { s.walked, s.metSyncs, s.metChanges, s.hung = 202, 0, 0, true }), ""},
		{"iptables, whose connections go by chance", proxy(edges[0], affected, kubeproxy.IPTables),
			with(func(s *standing) { s.mode, s.walked, s.endpoints = kubeproxy.IPTables, 0, 170 }), ""},
		{"iptables, not for long", proxy(edges[0], affected, kubeproxy.IPTables),
			with(func(s *standing) { s.mode, s.walked, s.took = kubeproxy.IPTables, 0, period*3/2 }),
			"no tick walked the list while syncs went on: 0 entries in the log, 2 syncs finished since it began"},
		{"no load", proxy(edges[0], affected, kubeproxy.IPVS), standing{}, "there was no load"},
		{"it fell back to iptables", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.mode = kubeproxy.IPTables }),
			`kube-proxy runs in mode "iptables", not "ipvs"`},
		{"the load broke", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.load = errors.New("killed") }), "the load ended early: killed"},
		{"the churn stopped", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.metChanges = int64(churn.Services) - 1 }),
			"the churn stopped: 59 changes since the tick began"},
		{"connections were closed", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.connections = 12 }),
			fmt.Sprintf("12 connections to %d endpoints were left", heldEndpoints)},
		{"it has no list, and connections broke with their endpoints", proxy(edges[0], affected, kubeproxy.IPVS),
			with(func(s *standing) { s.atOnce, s.walked, s.connections, s.endpoints = true, 0, 0, 0 }), ""},
		{"the tick did not walk the whole list", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.walked-- }),
			"no tick walked the list while syncs went on: 749 entries in the log, 2 syncs finished since it began"},
		{"no sync met the tick", proxy(edges[0], affected, kubeproxy.IPVS), with(func(s *standing) { s.metSyncs = 1 }),
			"no tick walked the list while syncs went on: 750 entries in the log, 1 syncs finished since it began"},
	} {
		s := &trial{proxy: c.proxy, ticks: 2, result: c.result}
		effective, saw, err := s.tookEffect(t.Context(), nil)
		must.NoError(t, err)
		must.Equal(t, c.name, []any{c.saw == "", c.saw}, []any{effective, saw})
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   kubeproxy.Mode
		walked int // in lists
		more   int // entries of the next one
		syncs  int
		hung   bool
		atOnce bool
		want   int
	}{
		{name: "the list was filled", mode: kubeproxy.IPVS, walked: 1, syncs: 9, want: 0},
		{name: "two ticks", mode: kubeproxy.IPVS, walked: 3, syncs: 9, want: 2},
		{name: "half of a third", mode: kubeproxy.IPVS, walked: 3, more: 100, syncs: 9, want: 2},
		{name: "two ticks that met no sync", mode: kubeproxy.IPVS, walked: 3, syncs: 1, want: 0},
		{name: "hung as the list was filled", mode: kubeproxy.IPVS, more: 202, hung: true, want: 1},
		{name: "hung in the first tick", mode: kubeproxy.IPVS, walked: 1, more: 3, hung: true, want: 1},
		{name: "hung at the end of the first tick", mode: kubeproxy.IPVS, walked: 2, hung: true, want: 1},
		{name: "hung in the second", mode: kubeproxy.IPVS, walked: 2, more: 3, hung: true, want: 2},
		{name: "without ticks the time counts", mode: kubeproxy.IPTables, syncs: 9, want: 3},
		{name: "so it does without a list", mode: kubeproxy.IPVS, atOnce: true, syncs: 9, want: 3},
		{name: "and without a sync nothing does", mode: kubeproxy.IPVS, atOnce: true, syncs: 1, want: 0},
	} {
		a := standing{mode: c.mode, hung: c.hung, atOnce: c.atOnce, metSyncs: c.syncs, walked: c.walked*heldEndpoints + c.more, took: 3*period + time.Second}
		must.Equal(t, c.name, c.want, a.ticks())
	}
}
