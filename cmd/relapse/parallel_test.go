package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
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
		{[]int{-1, exitExpected}, exitUnexpected, "1 of 2 scenarios did not pass: drain (exit status -1)"}, // killed
		{[]int{exitInterrupted, exitUnexpected}, exitInterrupted, engine.ErrInterrupted.Error()},
	} {
		err := outcomeOf(chosen, test.statuses)
		if got := exitStatus(t.Context(), err); got != test.want {
			t.Errorf("%v: exit status %d, want %d", test.statuses, got, test.want)
		}
		if err != nil && err.Error() != test.says || (err == nil) != (test.says == "") {
			t.Errorf("%v: %v, want %q", test.statuses, err, test.says)
		}
	}
	var several *notAllPassed
	if err := outcomeOf(chosen, []int{exitUnexpected, exitExpected}); !errors.As(err, &several) {
		t.Errorf("%v is no %T", err, several)
	}
}

func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	var lines sync.Mutex
	a, b := &prefixed{to: &out, lines: &lines, prefix: "a | "}, &prefixed{to: &out, lines: &lines, prefix: "b | "}
	for _, w := range []struct {
		to   *prefixed
		text string
	}{{a, "one\ntw"}, {b, "other\n\n"}, {a, "o\nthree"}} {
		if n, err := w.to.Write([]byte(w.text)); n != len(w.text) || err != nil {
			t.Fatal(n, err)
		}
	}
	a.flush()
	b.flush()
	if want := "a | one\nb | other\nb | \na | two\na | three\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}

// TestSideBySide runs two scenarios as far as that goes without a lab.
func TestSideBySide(t *testing.T) {
	got := relapse(t, "run", "node-drain", "added-nic", "--dry-run", "--parallel", "2", "--variant", "cilium-1.12.0,first-found")
	if got.status != exitExpected || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	for _, part := range []string{"node-drain | ", "cilium-1.12.0", "added-nic  | ", "first-found", "\nscenarios: 2 in ", ", 2 at once\n"} {
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
	if got.status != exitUsage || got.stderr != "relapse: --parallel: -1 is no number of scenarios\n" {
		t.Errorf("%+v", got)
	}
}
