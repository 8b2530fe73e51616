package addednic

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestFactsTellProbesApart(t *testing.T) {
	all, lost := probes()
	must.Equal(t, "all probes lose packets: nothing tells them apart", false, len(lost) == len(all))
}

func TestCardStaysApart(t *testing.T) {
	must.Fail(t, must.Err(Scenario.Within(netip.MustParsePrefix("10.51.0.0/16")))) // onto the card's subnet
}

// at is a snapshot in which Calico has this address for worker1. Sessions are up, except for worker1's
// if the address is not the declared one.
func at(worker1 string) snapshot.Snapshot {
	addresses := map[string]string{"master": "10.50.0.11", "worker1": worker1, "worker2": "10.50.0.22"}
	var s snapshot.Snapshot
	for _, node := range []string{"master", "worker1", "worker2"} {
		n := snapshot.Node{Name: node}
		n.Calico.Address = netip.MustParsePrefix(addresses[node] + "/24")
		s.Nodes.Items = append(s.Nodes.Items, n)
		network := snapshot.NodeNetwork{Node: node}
		network.BIRD.Items = []snapshot.BIRDProtocol{{Name: "kernel1"}}
		for _, other := range []string{"master", "worker1", "worker2"} {
			if other == node {
				continue
			}
			state := snapshot.Established
			if worker1 != "10.50.0.21" && (node == "worker1" || other == "worker1") {
				state = "Connect"
			}
			network.BIRD.Items = append(network.BIRD.Items, snapshot.BIRDProtocol{
				Name: "Mesh_" + other, Neighbor: netip.MustParseAddr(addresses[other]), BGPState: state,
			})
		}
		s.NodeNetworks = append(s.NodeNetworks, network)
	}
	return s
}

func TestChecks(t *testing.T) {
	silent := at("10.51.7.21")
	silent.NodeNetworks[1].BIRD.Items = nil
	halfway := at("10.51.7.21")
	halfway.NodeNetworks[1].BIRD.Items[1].BGPState = snapshot.Established
	lacking := at("10.50.0.21")
	lacking.NodeNetworks[0].BIRD.Items = lacking.NodeNetworks[0].BIRD.Items[:2]
	for name, test := range map[string]struct {
		at          snapshot.Snapshot
		well, moved bool
	}{
		"before":               {at("10.50.0.21"), true, false},
		"after":                {at("10.51.7.21"), false, true},
		"another address":      {at("10.51.7.99"), false, false},
		"a BIRD is silent":     {silent, false, false},
		"a session stays":      {halfway, false, false},
		"a session is lacking": {lacking, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &framework.Run{Topology: lab, Snapshot: func() snapshot.Snapshot { return test.at.Only(addressing...) }}
			well, saw, _ := addressed("")(t.Context(), r)
			must.Equal(t, saw, test.well, well)
			moved, saw, _ := addressed(coreDNSNode)(t.Context(), r)
			must.Equal(t, saw, test.moved, moved)
		})
	}
}
