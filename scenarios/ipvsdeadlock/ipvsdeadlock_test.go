package ipvsdeadlock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
)

func TestTopology(t *testing.T) {
	if err := lab.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, p := range podRanges {
		if !podCIDR.Overlaps(p) {
			t.Errorf("the range %s of %s is not in %s", p, name, podCIDR)
		}
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

func TestEndpoints(t *testing.T) {
	all := busyEndpoints()
	seen := map[string]bool{}
	for _, a := range all {
		if !busyRange.Contains(a) {
			t.Errorf("%s is not in %s", a, busyRange)
		}
		seen[a.String()] = true
	}
	if len(seen) != endpointsOfBusy || connections < endpointsOfBusy {
		t.Errorf("%d different endpoints, %d connections", len(seen), connections)
	}
	if e := endpointsOf("busy", all...); len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != endpointsOfBusy {
		t.Errorf("endpoints: %+v", e)
	}
	// An empty subset would be refused.
	if e := endpointsOf("busy"); len(e.Subsets) != 0 {
		t.Errorf("no endpoints: %+v", e)
	}
}

// A load under which 1.13.0 might not have hung proves nothing.
func TestHeld(t *testing.T) {
	good := standing{mode: ipvs, walked: 500, connections: connections, endpoints: endpointsOfBusy, worst: time.Second}
	with := func(change func(*standing)) standing {
		s := good
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		proxy kubeProxy
		after standing
		saw   string // empty: it held
	}{
		{"it stood the load", kubeProxy{fixed, ipvs}, good, ""},
		{"it hung while the endpoints went onto the list", kubeProxy{affected, ipvs}, with(func(s *standing) { s.walked, s.hung = 202, true }), ""},
		{
			"iptables, whose connections go by chance", kubeProxy{affected, iptables},
			with(func(s *standing) { s.mode, s.walked, s.endpoints = iptables, 0, 170 }), "",
		},
		{"no load", kubeProxy{affected, ipvs}, standing{}, "there was no load"},
		{
			"it fell back to iptables", kubeProxy{affected, ipvs}, with(func(s *standing) { s.mode = iptables }),
			`kube-proxy runs in mode "iptables", not "ipvs"`,
		},
		{"the load broke", kubeProxy{affected, ipvs}, with(func(s *standing) { s.load = errors.New("killed") }), "the load ended early: killed"},
		{"the churn stopped", kubeProxy{affected, ipvs}, with(func(s *standing) { s.worst = 20 * time.Second }), "the churn paused for 20s"},
		{
			"connections were closed", kubeProxy{affected, ipvs}, with(func(s *standing) { s.connections = 12 }),
			fmt.Sprintf("12 connections to %d endpoints were left", endpointsOfBusy),
		},
		{
			"no tick came", kubeProxy{affected, ipvs}, with(func(s *standing) { s.walked = endpointsOfBusy }),
			fmt.Sprintf("no tick walked the list: the log tells of %d entries", endpointsOfBusy),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{proxy: c.proxy, after: c.after}
			held, saw, err := s.held(t.Context(), nil)
			if err != nil || held != (c.saw == "") || saw != c.saw {
				t.Errorf("held %v, saw %q, %v; want %q", held, saw, err, c.saw)
			}
		})
	}
}
