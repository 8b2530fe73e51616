package scenarios

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// A fixed variant proves nothing unless it bears the load that an affected one loses packets of.
func compareLoads(t *testing.T, s framework.Scenario) {
	for _, fixed := range s.Variants {
		bears := func(affected framework.Variant) bool {
			same := cmp.Diff(affected.Script().Impacted, fixed.Script().Impacted, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})) == ""
			return affected.Role == framework.Affected && same
		}
		if fixed.Role == framework.Fixed && !slices.ContainsFunc(s.Variants, bears) {
			t.Errorf("no affected variant has the impacted probes of %s, so its verdict cannot be compared", fixed.Name)
		}
	}
}

// Whatever is wrong with a scenario, and can be seen without a lab, shows here and not half a
// minute into a run. go test -v lists its steps, as relapse run --dry-run does.
func TestScenario(t *testing.T) {
	built := must.Get(images.Open(".."))(t)
	known := func(ref string) bool { _, err := built.Recipe(ref); return err == nil }
	taken, networks := map[string]bool{}, map[netip.Prefix]string{}
	for _, s := range All {
		t.Run(s.Incident.Name, func(t *testing.T) {
			if err := s.Validate(); err != nil {
				t.Error(err)
			}
			if len(s.Incident.Facts) == 0 {
				t.Error("its record lists no facts: it does not say what of the incident a run asserts")
			}
			if s.Owner == "" {
				t.Error("it has no owner: no one is informed when its verdict changes over night")
			}
			if s.Budget.Whole == 0 {
				t.Error("it has no budget: make bench does not measure it")
			}
			if s.Foreign == (s.OnlyOwnLab != "") {
				t.Errorf("Foreign is %t, and the reason why it runs on relapse's own labs alone is %q", s.Foreign, s.OnlyOwnLab)
			}
			// .ci finds the test of a scenario by the scenario's name.
			folder := strings.ReplaceAll(s.Incident.Name, "-", "")
			must.Get(os.Stat(filepath.Join(folder, "lab_test.go")))(t)
			for _, v := range s.Variants {
				if taken[v.Name] {
					t.Errorf("variant %q: another scenario has one of this name, and --variant and --label choose by it", v.Name)
				}
				taken[v.Name] = true
			}
			for _, n := range s.Topology.Networks {
				for other, owner := range networks {
					if other.Overlaps(n.Subnet) {
						t.Errorf("network %s %s overlaps %s of %s, and both labs may be up", n.Name, n.Subnet, other, owner)
					}
				}
			}
			for _, n := range s.Topology.Networks {
				networks[n.Subnet] = s.Incident.Name
			}
			compareLoads(t, s)
			for _, step := range engine.New(s, nil, engine.Options{}).Steps() {
				t.Logf("%s: %s", step.Scope, step.Name)
			}
			if missing := slices.DeleteFunc(suite.ImagesOf(s, false, s.Runnable()...), known); len(missing) > 0 {
				t.Errorf("there is no recipe for %q", missing)
			}
		})
	}
}

// asksSnapshot tells whether a check asks for a snapshot before it asks for
// anything that only a lab has.
func asksSnapshot(t *testing.T, lab topology.Topology, c framework.Check) (asked bool) {
	defer func() { _ = recover() }() // it wanted the lab
	_, _, _ = c.Holds(t.Context(), &framework.Run{
		Topology: lab,
		Snapshot: func() snapshot.Snapshot { asked = true; return snapshot.Snapshot{} },
		Findings: func() []detect.Finding { return nil },
		Timelines: func() []probe.Timeline {
			return []probe.Timeline{{Record: probe.Record{Probe: probe.Probe{From: "node1", To: "node2"}}}}
		},
		Evidence: func(string, any) {},
		Note:     func(string) {},
	})
	return asked
}

// A check that looks at snapshots must name its sources: they are not read
// otherwise in a variant whose detectors do not need them.
func TestChecksSayWhatTheyRead(t *testing.T) {
	found := 0
	for _, s := range All {
		for _, v := range s.Variants {
			for _, c := range v.Script().Checks() {
				switch asked := asksSnapshot(t, s.Topology, c); {
				case asked && len(c.Reads) == 0:
					t.Errorf("%s, %s: the check %q asks for a snapshot, and says of no source that it reads it", s.Incident.Name, v.Name, c.Name)
				case asked:
					found++
				}
			}
		}
	}
	must.Equal(t, "checks that ask for a snapshot", true, found > 0)
}
