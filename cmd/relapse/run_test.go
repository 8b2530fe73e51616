package main

import (
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/topology/must"
)

// What a version cannot do on a dual lab is the machine's status: nothing that was typed is wrong.
func TestCheckRunnable(t *testing.T) {
	s := framework.Scenario{
		Variants:   []framework.Variant{{Name: "old", OnlyIPv4: "it has no IPv6"}},
		Parameters: []framework.Parameter{framework.Family}, With: framework.WithFamily,
	}
	must.NoError(t, checkRunnable([]framework.Scenario{s}, engine.Options{}))
	dual := []framework.Scenario{must.Get(s.Set(map[string]string{"family": "dual"}))(t)}
	for _, wanted := range [][]string{nil, {"old"}} {
		err := checkRunnable(dual, engine.Options{Variants: wanted})
		must.Fail(t, err, `variant "old" runs only with --family ipv4: it has no IPv6`)
		must.Equal(t, "status", exitMachine, exitStatus(t.Context(), err))
	}
}

func TestCheckVariants(t *testing.T) {
	scenario := func(name string, variants ...string) framework.Scenario {
		s := framework.Scenario{Incident: framework.Incident{Name: name}}
		for _, v := range variants {
			s.Variants = append(s.Variants, framework.Variant{Name: v})
		}
		return s
	}
	two := []framework.Scenario{scenario("drain", "cilium-1", "cilium-2"), scenario("nic", "calico-3", "cilium-2")}
	for _, test := range []struct {
		name   string
		chosen []framework.Scenario
		wanted []string
		says   string // of the error; empty: fine
	}{
		{"all of them", two, nil, ""},
		{"one of each", two, []string{"cilium-1", "calico-3"}, ""},
		{"one that both have", two, []string{"cilium-2"}, ""},
		{"one of one", two[:1], []string{"cilium-1"}, ""},
		{"the other would run nothing", two, []string{"cilium-1"},
			`scenario "nic" has none of the variants asked for; there are ["calico-3" "cilium-2"]`},
		{"of the other scenario alone", two[:1], []string{"calico-3"}, `no variant "calico-3"; nearest is "cilium-1"`},
		{"two slips", two, []string{"cilium-9", "calico-9"},
			"no variant \"cilium-9\"; nearest is \"cilium-1\"\nno variant \"calico-9\"; nearest is \"calico-3\""},
		{"a slip beside a good one", two, []string{"cilium-2", "calico-4"}, `no variant "calico-4"; nearest is "calico-3"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkVariants(test.chosen, test.wanted)
			must.Equal(t, "error", test.says, complaint(t.Context(), err))
			must.Equal(t, "status", map[bool]int{true: exitUsage}[test.says != ""], exitStatus(t.Context(), err))
		})
	}
}

// TestSeveral runs two scenarios as far as that goes without a lab.
func TestSeveral(t *testing.T) {
	got := relapse(t, "run", "node-drain", "added-nic", "--dry-run", "--variant", "cilium-1.12.0,first-found")
	got.prints(t, exitExpected, "node-drain cilium-1.12.0 ", "added-nic first-found ")
	for _, part := range []string{"cilium-1.11.6", "first-found-restarted"} {
		must.Equal(t, part, 0, strings.Count(got.stdout+got.stderr, part))
	}
}

// The command in a report leaves out what changes nothing of the verdict and what other
// scenarios of the run have, and can be pasted into a shell.
func TestCommandOf(t *testing.T) {
	run := runCommand(&settings{})
	must.NoError(t, run.ParseFlags([]string{
		"--variant", "a,b", "--variant", "c", "--set", "bgp=frr,mtu=1 400", "--with", "cilium=1.12.1,coredns=1.9.1",
		"--keep", "--output", "x", "--repeat", "3", "--parallel", "2", "--timeout", "5m",
	}))
	got := commandOf(framework.Scenario{
		Incident:   framework.Incident{Name: "drain"},
		Variants:   []framework.Variant{{Name: "a"}, {Name: "c"}, {Name: "d"}},
		Parameters: []framework.Parameter{{Name: "mtu"}},
		Tested:     []framework.Tested{{Name: "cilium"}},
	}, run.Flags())
	must.Equal(t, "", "relapse run drain --repeat=3 '--set=mtu=1 400' --variant=a --variant=c --with=cilium=1.12.1", got)
}
