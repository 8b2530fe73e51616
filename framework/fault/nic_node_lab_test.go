//go:build lab

package fault

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

var nodesNet = topology.NewNetwork("nodes", "10.231.9.0/24")

// nodesForNIC is two nodes and the router that is their default route.
var nodesForNIC = topology.Topology{
	Name: "nic-test", Networks: []topology.Network{nodesNet},
	Clusters: []topology.Cluster{{
		NodeMask: 24, PodCIDR: netip.MustParsePrefix("10.233.0.0/16"), Nodes: []topology.Node{nodesNet.Node("first", 21), nodesNet.Node("second", 11)},
	}},
}.Behind(topology.OneToR(nodesNet))

// TestPlugNICIntoANode plugs a card into a node of a real lab, and takes the
// lab down with the card in.
func TestPlugNICIntoANode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	docker := must.Get(client.New(client.FromEnv))(t)
	catalogue := must.Get(images.Open("../.."))(t)
	must.Get(catalogue.Build(ctx, kindlab.ImagesOf(nodesForNIC), func(images.Event) {}))(t)
	down := func() {
		if err := kindlab.Down(context.Background(), docker, nodesForNIC.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	lab, err := kindlab.Up(ctx, docker, nodesForNIC, kindlab.Options{Images: catalogue})
	defer down()
	if lab != nil {
		defer lab.Release()
	}
	must.NoError(t, err)
	n := NIC{Node: "second", Name: "eth1", Address: netip.MustParsePrefix("192.168.77.5/24")}
	f := PlugNIC(n)
	r := &framework.Run{Lab: lab, Topology: lab.Topology}
	collector := must.Get(snapshot.Open(ctx, labaccess.Of(lab), snapshot.NodeNetworks))(t)
	defer collector.Close()
	read := func(ctx context.Context) ([]snapshot.Interface, error) {
		s := collector.Collect(ctx)
		i := slices.IndexFunc(s.NodeNetworks, func(n snapshot.NodeNetwork) bool { return n.Node == "second" })
		if i < 0 || !s.NodeNetworks[i].Interfaces.Read {
			return nil, fmt.Errorf("the interfaces of second were not read: %q", s.Unavailable())
		}
		return s.NodeNetworks[i].Interfaces.Items, nil
	}
	for round := range 2 { // the second card stays in
		before := must.Get(read(ctx))(t)
		began := time.Now()
		must.NoError(t, f.Inject(ctx, r))
		if held, saw, err := f.TookEffect(ctx, r); !held || err != nil {
			t.Fatalf("not held: %q, %v", saw, err)
		}
		t.Logf("plugged in and unreached after %s", time.Since(began).Round(time.Millisecond))
		after := must.Get(read(ctx))(t)
		if last := after[len(after)-1]; len(after) != len(before)+1 || last.Name != "eth1" || last.Since.IsZero() {
			t.Errorf("interfaces are %+v; want eth1 last after %+v", after, before)
		}
		if last := after[len(after)-1]; len(last.Addresses) == 0 || last.Addresses[0] != n.Address {
			t.Errorf("eth1 is %+v", last)
		}
		must.Fail(t, PlugNIC(n).Inject(ctx, r), "has an interface eth1")
		if round > 0 {
			break
		}
		must.NoError(t, f.Undo(ctx, r))
		if now, err := read(ctx); err != nil || len(now) != len(before) {
			t.Errorf("interfaces after undo are %+v, %v; want %+v", now, err, before)
		}
	}
	lab.Release()
	down()
	if left, err := kindlab.Labs(context.Background(), docker); err != nil || strings.Contains(strings.Join(left, " "), nodesForNIC.Name) {
		t.Errorf("labs left: %v, %v", left, err)
	}
}
