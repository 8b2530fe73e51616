package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/must"
)

// The machine is asked for the networks of all labs, before anything is built.
func TestNeedsNameSubnets(t *testing.T) {
	catalogue := must.Get(images.Open("../.."))(t)
	for on, want := range map[subnets]string{"": "10.4.94.0/24", "10.200.0.0/16": "10.200.0.0/24"} {
		s := must.Get(on.one("node-drain", nil))(t)
		got := needs(catalogue, s.Topology).Subnets
		if of := got[netip.MustParsePrefix(want)]; len(got) != len(s.Topology.Networks) || of != "nodes of node-drain" {
			t.Errorf("subnets %v, of %v", got, s.Topology.Networks)
		}
	}
	s := must.Get(subnets("10.200.0.0/16").one("masquerade-drift", nil))(t)
	of := needs(catalogue, s.Topology).Subnets[netip.MustParsePrefix("10.20.30.128/25")]
	must.Equal(t, "", "inside of masquerade-drift, which cannot move: it is a half of the incident's native CIDR", of)
}

// Each scenario of a run has subnets of its own: labs may be kept. Who repeats the run of one
// gets its part.
func TestSubnetsOfSeveralScenarios(t *testing.T) {
	run := runCommand(&settings{})
	must.NoError(t, run.ParseFlags([]string{"--subnets", "10.200.0.0/16"}))
	chosen := slices.Clone(scenarios.All)
	must.NoError(t, subnets("10.200.0.0/16").move(chosen))
	taken := map[netip.Prefix]string{}
	for _, s := range chosen {
		for _, n := range s.Topology.Networks {
			for other, of := range taken {
				if other.Overlaps(n.Subnet) {
					t.Errorf("%s of %s has %s, which overlaps %s of %s", n.Name, s.Incident.Name, n.Subnet, other, of)
				}
			}
			taken[n.Subnet] = s.Incident.Name
		}
		command := commandOf(s, run.Flags())
		_, part, given := strings.Cut(command, "--subnets=")
		if !given {
			t.Errorf("%s: %q repeats it", s.Incident.Name, command)
			continue
		}
		alone, err := subnets(part).one(s.Incident.Name, nil)
		if err != nil || fmt.Sprint(alone.Topology) != fmt.Sprint(s.Topology) {
			t.Errorf("%s has %v, and who repeats it %v (%v)", s.Incident.Name, s.Topology.Networks, alone.Topology.Networks, err)
		}
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

// The commands that repeat or continue something have the flag.
func TestSubnetsInCommands(t *testing.T) {
	var q qualifyOptions
	for on, want := range map[subnets]bool{"10.200.0.0/16": true, "": false} {
		q.subnets = on
		must.Equal(t, on, want, strings.HasSuffix(q.command("cilium", "1.11.6", "1.12.0"), "--subnets 10.200.0.0/16"))
	}
}
