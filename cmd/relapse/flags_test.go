package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestFamilyIsAParameter(t *testing.T) {
	can := framework.Scenario{Incident: framework.Incident{Name: "can"}, Parameters: []framework.Parameter{framework.Family}}
	cannot := framework.Scenario{Incident: framework.Incident{Name: "cannot"}}
	dual := map[string]string{"family": "dual"}
	for _, test := range []struct {
		name   string
		value  family
		set    map[string]string
		chosen []framework.Scenario
		want   map[string]string
		says   string
	}{
		{"not given", "", nil, []framework.Scenario{cannot}, nil, ""},
		{"of a scenario that has it", "dual", nil, []framework.Scenario{can}, dual, ""},
		{"twice, alike", "dual", dual, []framework.Scenario{can}, dual, ""},
		{"twice", "dual", map[string]string{"family": "ipv4"}, []framework.Scenario{can}, nil, "--family=dual and --set family=ipv4: give one of them"},
		{"the default", "ipv4", nil, []framework.Scenario{cannot}, nil, ""},
		{"of one that has not", "dual", nil, []framework.Scenario{can, cannot}, nil, "--family: the lab of cannot is of IPv4 alone: expected node-drain, "},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.value.into(test.set, test.chosen...)
			if test.says != "" {
				must.Fail(t, err, test.says)
				must.Equal(t, "status", exitUsage, exitStatus(t.Context(), err))
				return
			}
			must.NoError(t, err)
			must.Equal(t, "parameters", test.want, got, cmpopts.EquateEmpty())
		})
	}
}

// The check of the machine includes the networks of all labs, before anything is built.
func TestNeedsNameSubnets(t *testing.T) {
	catalogue := must.Get(images.Open("../.."))(t)
	for on, want := range map[subnets]string{"": "10.4.94.0/24", "10.200.0.0/16": "10.200.0.0/24"} {
		s := must.Get(on.one("node-drain", nil))(t)
		got := needs(catalogue, s.Topology).Subnets
		must.Equal(t, got, len(s.Topology.Networks), len(got))
		must.Equal(t, want, "nodes of node-drain", got[netip.MustParsePrefix(want)])
	}
	s := must.Get(subnets("10.200.0.0/16").one("masquerade-drift", nil))(t)
	reason := needs(catalogue, s.Topology).Subnets[netip.MustParsePrefix("10.20.30.128/25")]
	must.Equal(t, "", "inside of masquerade-drift, which cannot move: it is a half of the incident's native CIDR", reason)
}

// Each scenario of a run has subnets of its own, because labs may be kept. A repeated run of one gets the same subnets.
func TestSubnetsOfSeveralScenarios(t *testing.T) {
	run := runCommand(&settings{})
	must.NoError(t, run.ParseFlags([]string{"--subnets", "10.200.0.0/16"}))
	chosen := slices.Clone(scenarios.All)
	must.NoError(t, subnets("10.200.0.0/16").move(chosen))
	owners := map[netip.Prefix]string{}
	for _, s := range chosen {
		for _, n := range s.Topology.Networks {
			for other, owner := range owners {
				must.Equal(t, fmt.Sprint(s.Incident.Name, n, " overlaps that of ", owner), false, other.Overlaps(n.Subnet))
			}
			owners[n.Subnet] = s.Incident.Name
		}
		_, part, given := strings.Cut(commandOf(s, run.Flags()), "--subnets=")
		must.Equal(t, "given for "+s.Incident.Name, true, given)
		alone := must.Get(subnets(part).one(s.Incident.Name, nil))(t)
		must.Equal(t, s.Incident.Name, fmt.Sprint(s.Topology), fmt.Sprint(alone.Topology))
	}
	stays := commandOf(framework.Scenario{Incident: framework.Incident{Name: "x"}}, run.Flags())
	must.Equal(t, stays, false, strings.Contains(stays, "--subnets"))
}

func TestSubnetsRefused(t *testing.T) {
	for on, says := range map[subnets]string{
		"10.200":        `--subnets: "10.200" is not a prefix: expected one such as 10.200.0.0/16`,
		"10.200.0.0/24": "--subnets: 10.200.0.0/24 is too small: the networks of node-drain need a /23",
		"10.4.0.0/14":   "--subnets: 10.4.0.0/14 overlaps 10.5.112.0/21, the pod range of node-drain, which stays: choose another prefix",
	} {
		_, err := on.one("node-drain", nil)
		must.Equal(t, on, says, complaint(t.Context(), err))
		must.Equal(t, "status", exitUsage, exitStatus(t.Context(), err))
	}
}

func TestSubnetsInCommands(t *testing.T) {
	var q qualifyOptions
	for on, want := range map[subnets]bool{"10.200.0.0/16": true, "": false} {
		q.subnets = on
		must.Equal(t, on, want, strings.HasSuffix(q.command("cilium", "1.11.6", "1.12.0"), "--subnets 10.200.0.0/16"))
	}
}
