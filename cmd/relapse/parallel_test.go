package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/topology"
)

func TestChildArgs(t *testing.T) {
	run := runCommand(&settings{})
	err := run.ParseFlags([]string{
		"--variant", "a,b", "--variant", "c", "--set", "bgp=frr,mtu=1400", "--ablate", "fault", "--parallel", "3", "--keep", "--timeout", "5m",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := childArgs(framework.Scenario{
		Incident:   framework.Incident{Name: "drain"},
		Variants:   []framework.Variant{{Name: "a"}, {Name: "c"}, {Name: "d"}},
		Parameters: []framework.Parameter{{Name: "mtu"}},
	}, run.Flags())
	want := []string{"run", "drain", "--parallel", "1", "--ablate=fault", "--keep=true", "--set=mtu=1400", "--timeout=5m0s", "--variant=a", "--variant=c"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestOutcomeOf(t *testing.T) {
	chosen := []framework.Scenario{{Incident: framework.Incident{Name: "drain"}}, {Incident: framework.Incident{Name: "nic"}}}
	for _, test := range []struct {
		statuses []int
		want     int
		says     string
	}{
		{[]int{exitExpected, exitExpected}, exitExpected, ""},
		{[]int{exitExpected, exitInconclusive}, exitInconclusive, "1 of 2 scenarios did not pass: nic (exit status 4)"},
		{[]int{exitInconclusive, exitUnexpected}, exitUnexpected, "2 of 2 scenarios did not pass: drain (exit status 4), nic (exit status 1)"},
		{[]int{exitMachine, exitInconclusive}, exitMachine, "2 of 2 scenarios did not pass: drain (exit status 3), nic (exit status 4)"},
		{[]int{-1, exitInconclusive}, exitUnexpected, "2 of 2 scenarios did not pass: drain (exit status -1), nic (exit status 4)"}, // killed
		{[]int{exitInterrupted, exitInconclusive}, exitInconclusive, "2 of 2 scenarios did not pass: drain (exit status 130), nic (exit status 4)"},
		{[]int{exitInterrupted, exitExpected}, exitInterrupted, "1 of 2 scenarios did not pass: drain (exit status 130)"},
	} {
		err := outcomeOf(chosen, test.statuses)
		if got := exitStatus(t.Context(), err); got != test.want {
			t.Errorf("%v: exit status %d, want %d", test.statuses, got, test.want)
		}
		if err != nil && err.Error() != test.says || (err == nil) != (test.says == "") {
			t.Errorf("%v: %v, want %q", test.statuses, err, test.says)
		}
	}
}

func TestLabsFor(t *testing.T) {
	for _, m := range []struct{ cpus, gib, want int }{{1, 2, 1}, {2, 4, 1}, {2, 8, 2}, {2, 24, 2}, {4, 16, 4}, {16, 24, 6}} {
		if got := suite.AtOnce(m.cpus, m.gib); got != m.want {
			t.Errorf("%d CPUs, %d GiB: %d, want %d", m.cpus, m.gib, got, m.want)
		}
	}
}

func TestLongestFirst(t *testing.T) {
	var all []framework.Scenario
	for _, name := range []string{"short", "long", "new", "short as well"} {
		all = append(all, framework.Scenario{Incident: framework.Incident{Name: name}})
	}
	all = append(all, framework.Scenario{Incident: framework.Incident{Name: "with guests"}, Topology: topology.Topology{
		Clusters: []topology.Cluster{{Nodes: []topology.Node{{Kernel: "6.1"}, {Kernel: "6.1"}}}},
	}})
	took := func(name string, seconds float64) figures.Figure {
		return figures.Figure{Scenario: name, Name: figures.AllVariants, Unit: "s", Measured: figures.Spread{Min: seconds, Max: seconds}}
	}
	recorded := figures.File{Figures: []figures.Figure{took("short", 60), took("short as well", 60), took("long", 300), took("with guests", 200)}}
	var got []string
	for _, s := range longestFirst(all, recorded) {
		got = append(got, s.Incident.Name)
	}
	if want := []string{"with guests", "new", "long", "short", "short as well"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestParallel runs two scenarios as far as that goes without a lab.
func TestParallel(t *testing.T) {
	got := relapse(t, "run", "node-drain", "added-nic", "--dry-run", "--parallel", "2", "--variant", "cilium-1.12.0,first-found")
	if got.status != exitExpected || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	for _, part := range []string{"node-drain | ", "cilium-1.12.0", "added-nic  | ", "first-found", "\nscenarios: 2 in ", ", up to 2 at once\n"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("%q is missing in\n%s", part, got.stdout)
		}
	}
	for _, part := range []string{"cilium-1.11.6", "first-found-restarted"} {
		if strings.Contains(got.stdout, part) {
			t.Errorf("%q was not asked for:\n%s", part, got.stdout)
		}
	}
	got = relapse(t, "run", "node-drain", "added-nic", "--dry-run", "--parallel", "-1")
	if got.status != exitUsage || got.stderr != "relapse: --parallel: -1: expected 0 or more\n" {
		t.Errorf("%+v", got)
	}
}

// The command in a report leaves out what changes nothing of the verdict, and can be
// pasted into a shell.
func TestCommandOf(t *testing.T) {
	run := runCommand(&settings{})
	if err := run.ParseFlags([]string{"--variant", "a", "--set", "mtu=1 400", "--keep", "--output", "x", "--repeat", "3", "--parallel", "2"}); err != nil {
		t.Fatal(err)
	}
	got := commandOf(framework.Scenario{
		Incident: framework.Incident{Name: "drain"}, Variants: []framework.Variant{{Name: "a"}}, Parameters: []framework.Parameter{{Name: "mtu"}},
	}, run.Flags())
	if want := "relapse run drain --repeat=3 '--set=mtu=1 400' --variant=a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
