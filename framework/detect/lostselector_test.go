package detect

import (
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

func TestLostSelector(t *testing.T) {
	reflectors := func(nodes ...string) snapshot.NodeSelection {
		return snapshot.NodeSelection{Kind: "BGPPeer", Name: "reflectors", Field: "spec.peerSelector", Nodes: nodes,
			Labels: []string{"node-role.kubernetes.io/master"}, Needs: slices.Repeat([]string{"node-role.kubernetes.io/master"}, len(nodes))}
	}
	rack := func(kind, name string, nodes ...string) snapshot.NodeSelection {
		return snapshot.NodeSelection{Kind: kind, Name: name, Field: "spec.nodeSelector", Nodes: nodes, Labels: []string{"rack"}}
	}
	meshed := reflectors()
	meshed.Mesh = true
	others := reflectors("node1")
	others.Needs = nil
	const removed = "latent BGPPeer reflectors selects node1 by the label node-role.kubernetes.io/master (spec.peerSelector). Kubernetes has replaced that label, and an upgrade removes it from nodes: then the object selects no node."
	for _, tt := range []struct {
		name, kubelet string
		is            []snapshot.NodeSelection
		want          []string
	}{
		{"the label is gone", "v1.24.0", []snapshot.NodeSelection{rack("BGPPeer", "reflectors", "node1"), reflectors()}, []string{
			"active BGPPeer reflectors selects no node: its spec.peerSelector names node-role.kubernetes.io/master. No other BGPPeer selects one by spec.peerSelector: nodes have no BGP session with such a peer, and the mesh of nodes is off."}},
		{"nodes are peers of each other", "v1.24.0", []snapshot.NodeSelection{meshed}, nil},
		{"before the upgrade", "v1.23.0", []snapshot.NodeSelection{reflectors("node1")}, []string{removed}},
		{"nodes without the label are selected too", "v1.23.0", []snapshot.NodeSelection{others}, nil},
		{"a distribution that keeps the label", "v1.33.1+k3s1", []snapshot.NodeSelection{reflectors("node1")}, nil},
		{"a rack without nodes", "v1.33.1", []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a", "node1"), rack("CiliumBGPClusterConfig", "b")}, nil},
		{"no rack has nodes", "v1.33.1", []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a"), rack("BGPAdvertisement", "metallb-system/b", "node1")}, []string{
			"active CiliumBGPClusterConfig a selects no node: its spec.nodeSelector names rack. No other CiliumBGPClusterConfig selects one by spec.nodeSelector: no node has a BGP session by it."}},
		{name: "no such object", kubelet: "v1.33.1"},
		{name: "no node", is: []snapshot.NodeSelection{rack("CiliumBGPClusterConfig", "a")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := snapshot.Snapshot{NodeSelections: snapshot.List[snapshot.NodeSelection]{Read: true, Items: tt.is}, Nodes: snapshot.List[snapshot.Node]{Read: true}}
			if tt.kubelet != "" {
				s.Nodes.Items = []snapshot.Node{{Name: "node1", Kubelet: tt.kubelet}}
			}
			var got []string
			for _, f := range Run([]Detector{LostSelector{}}, []snapshot.Snapshot{s}) {
				got = append(got, string(f.State)+" "+f.Says)
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("found %q\nwant  %q", got, tt.want)
			}
		})
	}
}
