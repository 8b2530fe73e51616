package detect

import (
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestLostSelector(t *testing.T) {
	reflectors := func(nodes ...string) snapshot.NodeSelection {
		return snapshot.NodeSelection{Kind: "BGPPeer", Name: "reflectors", Field: "spec.peerSelector", Of: []string{"node1"}, Nodes: nodes,
			Labels: []string{"node-role.kubernetes.io/master"}, Needs: slices.Repeat([]string{"node-role.kubernetes.io/master"}, len(nodes))}
	}
	rack := func(kind, name string, nodes ...string) snapshot.NodeSelection {
		return snapshot.NodeSelection{Kind: kind, Name: name, Field: "spec.nodeSelector", Nodes: nodes, Labels: []string{"rack"}}
	}
	meshed, others := reflectors(), reflectors("node1")
	meshed.Mesh, others.Needs = true, nil
	second := reflectors("node2")
	second.Name, second.Needs = "second", nil
	router := rack("BGPPeer", "tor", "node1")
	const gone = "active BGPPeer reflectors selects no node by the labels that its spec.peerSelector names (node-role.kubernetes.io/master), and no other object selects one in its place: there is no BGP session of node1 with such a peer."
	for _, tt := range []struct {
		name, kubelet string
		selections    []snapshot.NodeSelection
		want          []string
	}{
		{"the label is gone", "v1.24.0", []snapshot.NodeSelection{rack("BGPPeer", "reflectors", "node1"), reflectors()}, []string{gone}},
		{"nodes are peers of each other", "v1.24.0", []snapshot.NodeSelection{meshed}, nil},
		{"other reflectors", "v1.24.0", []snapshot.NodeSelection{reflectors(), second}, nil},
		{"a router outside", "v1.24.0", []snapshot.NodeSelection{reflectors(), router}, nil},
		{"reflectors of another rack", "v1.24.0", []snapshot.NodeSelection{reflectors(), {Kind: "BGPPeer", Name: "r2", Field: "spec.peerSelector", Of: []string{"node2"}, Nodes: []string{"node2"}}},
			[]string{gone}},
		{"before the upgrade", "v1.23.0", []snapshot.NodeSelection{reflectors("node1")}, []string{
			"latent BGPPeer reflectors selects node1 by the label node-role.kubernetes.io/master (spec.peerSelector). kubeadm sets that label no longer since 1.24, and its upgrade to 1.24 removes it. " +
				"Once these nodes are upgraded or made anew, the object selects no node."}},
		{"nodes without the label are selected too", "v1.23.0", []snapshot.NodeSelection{others}, nil},
		{"a distribution that keeps the label", "v1.33.1+k3s1", []snapshot.NodeSelection{reflectors("node1")}, nil},
		{"a rack without nodes", "v1.33.1", []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a", "node1"), rack("CiliumBGPClusterConfig", "b")}, nil},
		{"the policy of before", "v1.33.1", []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a", "node1"), rack("CiliumBGPPeeringPolicy", "b")}, nil},
		{"no rack has nodes", "v1.33.1", []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a"), rack("BGPAdvertisement", "metallb-system/b", "node1")}, []string{
			"active CiliumBGPClusterConfig a selects no node by the labels that its spec.nodeSelector names (rack), and no other object selects one in its place: no node has a BGP session by it."}},
		{name: "no such object", kubelet: "v1.33.1"},
		{name: "no node", selections: []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot.Snapshot{NodeSelections: snapshot.List[snapshot.NodeSelection]{Read: true, Items: tt.selections}, Nodes: snapshot.List[snapshot.Node]{Read: true}}
			if tt.kubelet != "" {
				s.Nodes.Items = []snapshot.Node{{Name: "node1", Kubelet: tt.kubelet}}
			}
			found := Run([]Detector{LostSelector{}}, []snapshot.Snapshot{s})
			must.Equal(t, "found", tt.want, each.Of(found, func(f Finding) string { return string(f.State) + " " + f.Says }))
		})
	}
}
