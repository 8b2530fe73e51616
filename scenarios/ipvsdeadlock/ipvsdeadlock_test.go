package ipvsdeadlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
)

func TestTopology(t *testing.T) {
	if err := lab.Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestVariantsArePairs(t *testing.T) {
	roles := map[framework.Role]int{}
	for _, v := range Scenario.Variants {
		roles[v.Role]++
		for _, image := range v.Images {
			if strings.Contains(image, "kube-proxy") && image == "k8s.gcr.io/kube-proxy:v" {
				t.Errorf("%s serves %q", v.Name, image)
			}
		}
	}
	if roles[framework.Affected] != 1 || roles[framework.Fixed] != 1 || roles[framework.Workaround] != 1 {
		t.Errorf("roles: %v", roles)
	}
}

// A load under which 1.13.0 might not have hung proves nothing.
func TestHeld(t *testing.T) {
	good := standing{
		mode: kubeproxy.IPVS, walked: 3 * services.HeldEndpoints, took: 2 * period, met: true, metSyncs: syncsMet, metChanges: int64(services.Churned),
		connections: services.Connections, endpoints: services.HeldEndpoints,
	}
	with := func(change func(*standing)) standing {
		s := good
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		proxy kubeproxy.Proxy
		after standing
		saw   string // empty: it held
	}{
		{"it stood the load", proxy(fixed, kubeproxy.IPVS), good, ""},
		{
			"it hung while the endpoints went onto the list", proxy(affected, kubeproxy.IPVS),
			with(func(s *standing) { s.walked, s.metSyncs, s.metChanges, s.hung = 202, 0, 0, true }), "",
		},
		{
			"iptables, whose connections go by chance", proxy(affected, kubeproxy.IPTables),
			with(func(s *standing) { s.mode, s.walked, s.endpoints = kubeproxy.IPTables, 0, 170 }), "",
		},
		{
			"iptables, not for long", proxy(affected, kubeproxy.IPTables),
			with(func(s *standing) { s.mode, s.walked, s.took = kubeproxy.IPTables, 0, period*3/2 }),
			"no tick walked the list while syncs went on: the log tells of 0 entries, 2 syncs were finished since it began",
		},
		{"no load", proxy(affected, kubeproxy.IPVS), standing{}, "there was no load"},
		{
			"it fell back to iptables", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.mode = kubeproxy.IPTables }),
			`kube-proxy runs in mode "iptables", not "ipvs"`,
		},
		{"the load broke", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.load = errors.New("killed") }), "the load ended early: killed"},
		{
			"the churn stopped", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.metChanges = int64(services.Churned) - 1 }),
			"the churn stopped: 59 changes since the tick began",
		},
		{
			"connections were closed", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.connections = 12 }),
			fmt.Sprintf("12 connections to %d endpoints were left", services.HeldEndpoints),
		},
		{
			"the tick did not walk the whole list", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.walked-- }),
			"no tick walked the list while syncs went on: the log tells of 749 entries, 2 syncs were finished since it began",
		},
		{
			"no sync met the tick", proxy(affected, kubeproxy.IPVS), with(func(s *standing) { s.metSyncs = 1 }),
			"no tick walked the list while syncs went on: the log tells of 750 entries, 1 syncs were finished since it began",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{proxy: c.proxy, ticks: 2, after: c.after}
			held, saw, err := s.held(t.Context(), nil)
			if err != nil || held != (c.saw == "") || saw != c.saw {
				t.Errorf("held %v, saw %q, %v; want %q", held, saw, err, c.saw)
			}
		})
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
	} {
		t.Run(c.name, func(t *testing.T) {
			a := standing{mode: c.mode, hung: c.hung, metSyncs: c.syncs, walked: c.walked*services.HeldEndpoints + c.more, took: 3*period + time.Second}
			if got := a.ticks(); got != c.want {
				t.Errorf("%d ticks, want %d", got, c.want)
			}
		})
	}
}
