package main

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/images"
)

// The machine is asked for the networks of all labs, before anything is built.
func TestNeedsNameSubnets(t *testing.T) {
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	s, err := scenarioNamed("node-drain")
	if err != nil {
		t.Fatal(err)
	}
	got := needs(catalogue, s.Topology).Subnets
	if of := got[netip.MustParsePrefix("10.4.94.0/24")]; len(got) != len(s.Topology.Networks) || of != "nodes of node-drain" {
		t.Errorf("subnets %v, of %v", got, s.Topology.Networks)
	}
}
