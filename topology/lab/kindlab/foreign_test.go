package kindlab

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/moby/moby/api/types/network"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// Only tables of iptables that were not there before are emptied.
func TestEmptied(t *testing.T) {
	const (
		nat    = "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j ACCEPT\nCOMMIT\n"
		filter = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"
	)
	for _, test := range []struct{ name, present, before, want string }{
		{"none", nat, nat, ""},
		{"one is new", filter + nat, nat, "*filter\nCOMMIT\n"},
		{"one is gone", nat, filter + nat, ""},
		{"there were none", nat, "", "*nat\nCOMMIT\n"},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, emptied(test.present, test.before)) })
	}
}

func TestRegistryNetwork(t *testing.T) {
	node := topology.Node{Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.4.94.32")}}}
	kind := &network.EndpointSettings{IPAddress: netip.MustParseAddr("172.18.0.2")}
	declared := &network.EndpointSettings{IPAddress: netip.MustParseAddr("10.4.94.32")}
	for _, test := range []struct {
		name string
		on   map[string]*network.EndpointSettings
		want string
	}{
		{"kind's alone", map[string]*network.EndpointSettings{"kind": kind}, "kind"},
		{"and one of the topology", map[string]*network.EndpointSettings{"kind": kind, "nodes": declared}, "kind"},
		{"and one that sorts before it", map[string]*network.EndpointSettings{"a": declared, "kind": kind}, "kind"},
		{"one of the topology alone", map[string]*network.EndpointSettings{"nodes": declared}, "nodes"},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, registryNetwork(test.on, node)) })
	}
}

// Objects that a user's controller, or kubectl, makes while the lab is adopted stay.
func TestMadeByKnown(t *testing.T) {
	make := func(name string, owner types.UID) object {
		return object{resource: schema.GroupVersionResource{Resource: "x"}, name: name, uid: types.UID(name), owners: []metav1.OwnerReference{{UID: owner}}}
	}
	all := []object{make("new-pod", "new-set"), make("new-set", "deployment"), make("deployment", ""), make("agent", "agents"), make("agents", ""), make("theirs", "")}
	all[5].byPeople = byPeople([]metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager"}, {Manager: "kubectl-client-side-apply"}})
	all[4].byPeople = byPeople([]metav1.ManagedFieldsEntry{{Manager: "relapse"}, {Manager: "cilium-operator-generic"}})
	got := slices.Sorted(maps.Keys(madeByKnown(all, map[string]bool{all[2].String(): true})))
	must.Equal(t, "", []types.UID{"deployment", "new-pod", "new-set", "theirs"}, got)
}
