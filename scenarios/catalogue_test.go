package scenarios

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// A fixed variant proves something only under the load with which an affected variant loses packets.
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

// Scenarios are valid as far as that shows without a lab. go test -v lists their steps, as relapse run
// --dry-run does.
func TestScenario(t *testing.T) {
	built := must.Get(images.Open(".."))(t)
	hasRecipe := func(ref string) bool { _, err := built.Recipe(ref); return err == nil }
	names, networks := map[string]bool{}, map[netip.Prefix]string{}
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
				if names[v.Name] {
					t.Errorf("variant %q: another scenario has one of this name, and --variant and --label choose by it", v.Name)
				}
				names[v.Name] = true
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
			if missing := slices.DeleteFunc(suite.ImagesOf(s, false, s.Runnable()...), hasRecipe); len(missing) > 0 {
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

// printed are all texts that describe, a dry run, a report or an export to containerlab may
// print of a scenario, and the addresses at which its endpoints answer.
func printed(t *testing.T, s framework.Scenario) []string {
	i := s.Incident
	texts := append([]string{i.Symptom, i.Cause, i.Affected, i.Fixed, i.Reproduction, i.Diagram, fmt.Sprintf("%+v", s.Topology)}, i.Remedies...)
	for _, f := range i.Facts {
		texts = append(texts, verdict.FactText(s, f))
	}
	for _, p := range s.Parameters {
		texts = append(texts, p.Default, p.About)
	}
	for _, v := range s.Variants {
		for _, c := range append(verdict.Cases(v, verdict.Options{}), verdict.Cases(v, verdict.Options{Ablate: verdict.AblateAll})...) {
			for _, step := range c.Steps() {
				texts = append(texts, step.Name)
			}
			expected := slices.Concat(c.Script.Latent, c.Script.Expected, c.Script.Transient)
			for _, form := range c.Script.Precursors {
				expected = slices.Concat(expected, form.Expected, form.Transient)
			}
			texts = append(texts, fmt.Sprintf("%+v", expected))
		}
		for _, end := range v.Script().Endpoints {
			if end.Address != nil {
				texts = append(texts, end.Address(&framework.Run{Topology: s.Topology}).String())
			}
		}
	}
	for _, f := range must.Get(containerlab.Files(s.Topology))(t) {
		texts = append(texts, f.Text)
	}
	return texts
}

var address = regexp.MustCompile(`\b(?:\d{1,3}\.){3}\d{1,3}\b`)

// documented counts the addresses in texts that are in the old subnets of moved networks.
func documented(moved framework.Scenario, texts []string) (count int, first string) {
	for _, text := range texts {
		for _, found := range address.FindAllString(text, -1) {
			a, err := netip.ParseAddr(found)
			for _, m := range moved.Moved {
				if err == nil && m.From.Contains(a) {
					if count++; first == "" {
						first = fmt.Sprintf("%s in %q", a, text)
					}
				}
			}
		}
	}
	return count, first
}

// A scenario whose networks were moved names nowhere an address of a documented subnet.
func TestMovedScenariosNameTheNewSubnets(t *testing.T) {
	prefix := netip.MustParsePrefix("10.200.0.0/16")
	for _, s := range All {
		t.Run(s.Incident.Name, func(t *testing.T) {
			moved := must.Get(s.Within(prefix))(t)
			must.NoError(t, moved.Validate())
			must.Equal(t, moved.Subnets(), len(s.Topology.Networks), len(moved.Subnets()))
			forms := map[string][2]framework.Scenario{"": {s, moved}}
			if s.Small != nil {
				forms["small"] = [2]framework.Scenario{*s.Small, *moved.Small}
			}
			was := must.Get(s.Unclassified(nil))(t)
			forms["unclassified"] = [2]framework.Scenario{was, must.Get(moved.Unclassified(nil))(t)}
			if s.With != nil {
				forms["parameters"] = [2]framework.Scenario{s, must.Get(moved.Set(map[string]string{}))(t)}
			}
			for form, one := range forms {
				if count, _ := documented(moved, printed(t, one[0])); count == 0 {
					t.Errorf("%s: the scenario on its documented subnets names no address of them: this test looks for nothing", form)
				}
				if count, first := documented(moved, printed(t, one[1])); count > 0 {
					t.Errorf("%s: %d addresses of documented subnets are left, the first is %s", form, count, first)
				}
			}
			// With the part of the prefix that it has, and by a stored run's subnets, it is
			// the same lab.
			part, _ := moved.MovedInto()
			must.Equal(t, part, fmt.Sprint(moved.Topology), fmt.Sprint(must.Get(s.Within(part))(t).Topology))
			subnets := map[string]netip.Prefix{}
			for _, n := range moved.Topology.Networks {
				subnets[n.Name] = n.Subnet
			}
			stored := must.Get(s.Onto(subnets))(t)
			must.Equal(t, "by stored subnets", fmt.Sprint(moved.Topology), fmt.Sprint(stored.Topology))
			must.Equal(t, "by stored subnets", moved.Incident.Diagram, stored.Incident.Diagram)
		})
	}
}

// A second lab can be up beside the labs of all scenarios.
func TestSecondLabsOverlapNothing(t *testing.T) {
	owners := map[netip.Prefix]string{}
	second := 0
	for _, s := range All {
		for _, n := range s.Topology.Networks {
			owners[n.Subnet] = n.Name + " of " + s.Incident.Name
		}
		for _, c := range s.Topology.Clusters {
			owners[c.PodCIDR] = "pods of " + s.Incident.Name
		}
	}
	for _, s := range All {
		if !s.SecondLab.IsValid() {
			continue
		}
		second++
		moved := must.Get(s.OnSecondLab(nil))(t)
		must.NoError(t, moved.Validate())
		if moved.Topology.Name == s.Topology.Name || len(moved.Moved) != len(s.Topology.Networks) {
			t.Errorf("%s on a second lab is %q, with %d of %d networks moved", s.Incident.Name, moved.Topology.Name, len(moved.Moved), len(s.Topology.Networks))
		}
		for other, what := range owners {
			if s.SecondLab.Overlaps(other) {
				t.Errorf("the second lab of %s, %s, overlaps %s, %s", s.Incident.Name, s.SecondLab, other, what)
			}
		}
		owners[s.SecondLab] = "the second lab of " + s.Incident.Name
	}
	must.Equal(t, "scenarios have a second lab", true, second > 0)
}

// A prefix for the networks must not overlap a range of the scenario that does not move.
func TestScenariosRefuseTheirOwnRanges(t *testing.T) {
	for _, s := range All {
		var ranges []netip.Prefix
		for _, c := range s.Topology.Clusters {
			ranges = append(ranges, c.PodCIDR, c.ServiceCIDR)
		}
		for _, n := range s.Topology.Networks {
			if n.Fixed != "" {
				ranges = append(ranges, n.Subnet)
			}
		}
		for _, p := range append(ranges, s.Topology.Routed...) {
			wide := netip.PrefixFrom(p.Addr(), 14).Masked()
			_, err := s.Within(wide)
			must.Equal(t, fmt.Sprintf("%s is moved into %s, which has its range %s in it", s.Incident.Name, wide, p), false, err == nil)
		}
	}
}

// masquerade-drift's cause is the native CIDR: what lies in it stays there.
func TestFixedNetworkStays(t *testing.T) {
	for _, s := range All {
		if s.Incident.Name != "masquerade-drift" {
			continue
		}
		moved := must.Get(s.Within(netip.MustParsePrefix("10.200.0.0/16")))(t)
		inside, _ := moved.Topology.Network("inside")
		neighbour, _ := moved.Topology.AddressOn("neighbour", "inside")
		if inside.Subnet.String() != "10.20.30.128/25" || neighbour.String() != "10.20.30.200" {
			t.Errorf("%s, with the neighbour at %s", inside.Subnet, neighbour)
		}
		return
	}
	t.Error("there is no masquerade-drift")
}
