package kindlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/must"
)

// threeNodes is a lab that does not run: two nodes on the router's network, and one that is not.
var threeNodes = Lab{Topology: topology.Topology{
	Name: "a",
	Clusters: []topology.Cluster{{Name: "k8s", Nodes: []topology.Node{
		{Name: "one", Links: []topology.Link{{Network: "storage", Address: netip.MustParseAddr("10.1.0.1")}, {Network: "nodes", Address: netip.MustParseAddr("10.0.0.1")}}},
		{Name: "two", Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.0.0.2")}}},
		{Name: "far", Links: []topology.Link{{Network: "storage", Address: netip.MustParseAddr("10.1.0.3")}}},
	}}},
	Routers: []topology.Router{{Name: "tor", Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.0.0.254")}}}},
}}

func TestNeighborsOf(t *testing.T) {
	got := must.Get(threeNodes.neighborsOf("tor", []string{"two", "one"}))(t)
	must.Equal(t, "", []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")}, got)
	must.Fail(t, must.Err(threeNodes.neighborsOf("tor", []string{"far"})), `node "far" and router "tor"`)
}

func TestEachNode(t *testing.T) {
	broken := errors.New("no answer")
	// No node's work ends before all nodes' work has begun.
	var begun sync.WaitGroup
	begun.Add(3)
	err := threeNodes.EachNode(t.Context(), []string{"one", "two", "far"}, func(_ context.Context, n *Node) error {
		begun.Done()
		begun.Wait()
		if n.Name() == "two" {
			return nil
		}
		return broken
	})
	must.Is(t, err, broken)
	must.Equal(t, "", "node one: no answer\nnode far: no answer", fmt.Sprint(err))
}

func TestIsKept(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.1")
	session := func(state string) []bgp.Neighbor { return []bgp.Neighbor{{Address: address, State: state}} }
	paths := []bgp.Path{{Neighbor: netip.MustParseAddr("10.0.0.2")}, {Neighbor: address}}
	for _, test := range []struct {
		name      string
		neighbors []bgp.Neighbor
		paths     []bgp.Path
		retained  bool
	}{
		{"up", session(bgp.StateEstablished), paths, false},
		{"gone", nil, paths[:1], false},
		{"kept while it restarts", session("active"), paths, true},
		{"kept, and not even a neighbour", nil, paths, true},
		{"it dials, and has nothing", session("openconfirm"), nil, false},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.retained, isKept(test.neighbors, test.paths, address)) })
	}
}
