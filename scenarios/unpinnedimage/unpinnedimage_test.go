package unpinnedimage

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

var (
	oldDigest = "sha256:" + strings.Repeat("1", 64)
	newDigest = "sha256:" + strings.Repeat("2", 64)
)

func TestNewcomerIsTheLast(t *testing.T) {
	if last := lab.Clusters[0].Nodes[len(all)-1].Name; last != newcomer {
		t.Errorf("only the newest node gets its pod range back: that is %s, and not %s", last, newcomer)
	}
}

// onLab is a run on the lab of the documented addresses.
var onLab = &framework.Run{Topology: lab}

// addr is a node's address.
func addr(t *testing.T, node string) netip.Addr {
	a, ok := lab.AddressOn(node, "nodes")
	if !ok {
		t.Fatalf("no node %s", node)
	}
	return a
}

// pull is a line of the registry's record.
func pull(t *testing.T, node, reference, digest string) registry.Pull {
	return registry.Pull{Client: addr(t, node), Image: untagged, Reference: reference, Digest: digest}
}

func TestGiven(t *testing.T) {
	pulls := []registry.Pull{
		pull(t, "master", "latest", oldDigest), pull(t, "master", "latest", newDigest),
		pull(t, "worker1", newDigest, newDigest), // it asked for that one
		pull(t, "worker2", "latest", ""),
	}
	if got, want := given(onLab, pulls, newDigest), []string{"master"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNotByDigest(t *testing.T) {
	pulls := []registry.Pull{pull(t, "master", oldDigest, oldDigest), pull(t, "worker1", oldDigest, ""), pull(t, "worker2", oldDigest, "")}
	if holds, saw, _ := notByDigest(onLab, pulls, oldDigest); !holds {
		t.Error(saw)
	}
	pulls = append(pulls[:2:2], pull(t, "worker1", "latest", newDigest))
	want := "worker1 has requested latest; worker2 has requested nothing"
	if holds, saw, _ := notByDigest(onLab, pulls, oldDigest); holds || saw != want {
		t.Errorf("%t, %q; want %q", holds, saw, want)
	}
}

func TestNodesRun(t *testing.T) {
	var s snapshot.Snapshot
	s.PodImages.Items = []snapshot.PodImages{{
		OwnerKind: "DaemonSet", OwnerName: "kube-router", Node: "worker1",
		Containers: []snapshot.RunningContainer{{Container: snapshot.Container{Name: "kube-router"}, ImageID: untagged + "@" + oldDigest}},
	}}
	if holds, saw, _ := nodesRun(s.Only(rollout...), []string{"worker1"}, oldDigest); !holds {
		t.Error(saw)
	}
	if holds, saw, _ := nodesRun(s.Only(rollout...), []string{"worker1", "worker2"}, oldDigest); holds || !strings.HasPrefix(saw, `worker2 runs ""`) {
		t.Errorf("%v, %s", holds, saw)
	}
}
