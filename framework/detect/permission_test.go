package detect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// agents is a snapshot of two nodes with an agent of these images each, whose account may do
// what the chart of a version grants, and of a router that has routes to the pods of some.
func agents(may string, images [2]string, reached ...string) snapshot.Snapshot {
	var s snapshot.Snapshot
	s.PodImages.Read, s.Accounts.Read, s.Nodes.Read, s.CiliumNodes.Read, s.CalicoBlocks.Read = true, true, true, true, true
	s.Accounts.Items = []snapshot.Account{
		{Namespace: "kube-system", Name: "cilium", Permissions: slices.Clone(grantedBy()["cilium/cilium"][may])},
		{Namespace: "kube-system", Name: "other"},
	}
	r := snapshot.Router{Name: "tor1"}
	r.Paths.Read, r.Routes.Read = true, true
	for i, image := range images {
		node, pods, address := fmt.Sprintf("node%d", i+1), netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/24", i)), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		s.PodImages.Items = append(s.PodImages.Items, snapshot.PodImages{
			Namespace: "kube-system", Name: "cilium-" + node, Node: node, ServiceAccount: "cilium",
			Containers: []snapshot.RunningContainer{
				{Container: snapshot.Container{Name: "config", Init: true, Image: "quay.io/cilium/cilium:v1.18.0"}},
				{Container: snapshot.Container{Name: "cilium-agent", Image: image}},
			},
		})
		s.Nodes.Items = append(s.Nodes.Items, snapshot.Node{Name: node, InternalIPs: []netip.Addr{address}})
		s.CiliumNodes.Items = append(s.CiliumNodes.Items, snapshot.CiliumNode{Name: node, PodCIDRs: []netip.Prefix{pods}})
		if slices.Contains(reached, node) {
			r.Paths.Items = append(r.Paths.Items, snapshot.Path{Prefix: pods, NextHop: address, Neighbor: address, Best: true})
		}
	}
	s.Routers = []snapshot.Router{r}
	return s
}

func image(version string) string { return "registry.example:5000/mirror/cilium/cilium:v" + version }

// A permission counts if all charts of the minor grant it, whichever rules it stands in.
func TestCommonPermissions(t *testing.T) {
	rule := func(resources, verbs, names string) snapshot.Permission {
		return snapshot.Permission{Groups: []string{"g"}, Resources: strings.Fields(resources), Verbs: strings.Fields(verbs), Names: strings.Fields(names)}
	}
	got := against(
		[]snapshot.Permission{rule("a b", "get list", ""), rule("c", "get", "one")},
		[]snapshot.Permission{rule("a", "get", ""), rule("a", "list watch", ""), rule("b", "list", ""), rule("c", "get", "two")}, true)
	must.Equal(t, "", []string{"get and list a.g", "list b.g"}, each.Of(got, sayPermission))
}

func TestPermission(t *testing.T) {
	both := func(version string) [2]string { return [2]string{image(version), image(version)} }
	permit := func(p snapshot.Permission) func(*snapshot.Snapshot) {
		return func(s *snapshot.Snapshot) {
			a := &s.Accounts.Items[0]
			a.Permissions = append(a.Permissions, p)
		}
	}
	rule := snapshot.Permission{Groups: []string{"cilium.io"}, Resources: []string{"ciliumbgppeeringpolicies"}, Verbs: []string{"list", "watch"}}
	namespaced := rule
	namespaced.Namespace = "kube-system"
	restricted := rule
	restricted.Names = []string{"one"}
	list := rule
	list.Verbs = []string{"list"}
	every := snapshot.Permission{Groups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}

	latent := "latent " + image("1.18.4") + " [kube-system/cilium-node1 kube-system/cilium-node2]"
	for _, test := range []struct {
		name string
		at   snapshot.Snapshot
		want []string
		says string
		not  []string // images that are not judged
	}{
		{name: "of their own chart", at: agents("1.18.4", both("1.18.4"), "node1", "node2")},
		{name: "of a chart without the rule", at: agents("1.19.3", both("1.18.4"), "node1", "node2"), want: []string{latent},
			says: "ServiceAccount kube-system/cilium may not list and watch ciliumbgppeeringpolicies.cilium.io, which the vendor's charts of cilium/cilium 1.18.0 and 1.18.4 all grant: kube-system/cilium-node1 and 1 more run " +
				image("1.18.4") + " with it, and may not work after a restart."},
		{name: "and one is restarted", at: agents("1.19.3", both("1.18.4"), "node2"),
			want: []string{"latent " + image("1.18.4") + " [kube-system/cilium-node2]", "active " + image("1.18.4") + " node1 [tor1] [kube-system/cilium-node1]"}},
		{name: "of a chart that has it again", at: agents("1.19.5", both("1.18.4"), "node1", "node2")},
		{name: "of the new version", at: agents("1.19.3", both("1.19.3"), "node1")},
		{name: "half of the nodes have the new version", at: agents("1.19.3", [2]string{image("1.19.3"), image("1.18.4")}, "node1", "node2"),
			want: []string{"latent " + image("1.18.4") + " [kube-system/cilium-node2]"}},
		{name: "a rule that the charts of the minor gained for the one before", at: agents("1.19.3", both("1.19.5"), "node1", "node2")},
		{name: "a rule that all charts of the minor have, asked for or not", at: agents("1.20.2", both("1.19.5"), "node1", "node2"),
			want: []string{"latent " + image("1.19.5") + " [kube-system/cilium-node1 kube-system/cilium-node2]"},
			says: "may not get, list and watch endpoints, which the vendor's charts of cilium/cilium 1.19.3 and 1.19.5 all grant:"},
		{name: "of a minor with one chart", at: agents("1.19.5", both("1.20.2"), "node1", "node2"),
			want: []string{"latent " + image("1.20.2") + " [kube-system/cilium-node1 kube-system/cilium-node2]"},
			says: "may not list and watch ciliumdatapathplugins.cilium.io, which the vendor's chart of cilium/cilium 1.20.2 grants:"},
		{name: "a version that is not known, by its minor", at: agents("1.19.3", both("1.18.9"), "node1", "node2"),
			want: []string{"latent " + image("1.18.9") + " [kube-system/cilium-node1 kube-system/cilium-node2]"}, says: "charts of cilium/cilium 1.18.0"},
		{name: "a version before all that are known of its minor", at: agents("1.18.4", both("1.19.0"), "node1", "node2")},
		{name: "an image of Rancher's", at: agents("1.19.3", [2]string{"rancher/mirrored-cilium-cilium:v1.18.4", "rancher/mirrored-cilium-cilium:v1.18.4"}, "node1", "node2"),
			want: []string{"latent rancher/mirrored-cilium-cilium:v1.18.4 [kube-system/cilium-node1 kube-system/cilium-node2]"}},
		{name: "a minor that is not known", at: agents("none", both("1.17.9")), not: []string{image("1.17.9")}},
		{name: "an image without a version", at: agents("none", [2]string{"quay.io/cilium/cilium@sha256:" + strings.Repeat("a", 64), "quay.io/cilium/cilium:latest"}),
			not: []string{"quay.io/cilium/cilium:latest", "quay.io/cilium/cilium@sha256:" + strings.Repeat("a", 64)}},
		{name: "an image of another name", at: agents("none", [2]string{"registry.example/net:7", "registry.example/net:7"}), not: []string{"registry.example/net:7"}},
		{name: "another image", at: changed(agents("none", [2]string{"quay.io/cilium/cilium-envoy:v1.18.4", "example.com/notcilium/cilium:v1.18.4"}), func(s *snapshot.Snapshot) {
			for i := range s.PodImages.Items {
				s.PodImages.Items[i].Containers[1].Name = "another"
			}
		})},
		{name: "the rule in a role of its own", at: changed(agents("1.19.3", both("1.18.4")), permit(rule))},
		{name: "everything", at: changed(agents("none", both("1.18.4")), permit(every))},
		{name: "in one namespace", at: changed(agents("1.19.3", both("1.18.4"), "node1", "node2"), permit(namespaced)), want: []string{latent}},
		{name: "of one name", at: changed(agents("1.19.3", both("1.18.4"), "node1", "node2"), permit(restricted)), want: []string{latent}},
		{name: "list alone", at: changed(agents("1.19.3", both("1.18.4"), "node1", "node2"), permit(list)), want: []string{latent}, says: "may not watch ciliumbgppeeringpolicies.cilium.io,"},
		{name: "routers that were not read", at: changed(agents("1.19.3", both("1.18.4")), func(s *snapshot.Snapshot) { s.Routers[0].Paths.Read = false }),
			want: []string{latent}},
		{name: "accounts that were not read", at: changed(agents("1.19.3", both("1.18.4")), func(s *snapshot.Snapshot) { s.Accounts.Read = false })},
		{name: "an account that was not there yet", at: changed(agents("1.19.3", both("1.18.4")), func(s *snapshot.Snapshot) { s.Accounts.Items = nil })},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			found := Run([]Detector{Permission{}}, []snapshot.Snapshot{test.at})
			for _, f := range found {
				account, reference, _ := strings.Cut(f.Object.String(), ", ")
				text := fmt.Sprintf("%s %s", f.State, reference)
				if f.Owner != "" {
					text += fmt.Sprintf(" %s %v", f.Owner, f.Routers)
				}
				got = append(got, fmt.Sprintf("%s %v", text, f.Pods))
				if f.Detector != "permission" || f.Kind != NotPermitted || account != "ServiceAccount kube-system/cilium" {
					t.Errorf("%+v", f)
				}
			}
			must.Equal(t, "", test.want, got)
			must.Equal(t, "not judged", test.not, (Permission{}).Ungranted(test.at))
			must.Contain(t, each.Joined(found, "\n", sentenceOf), test.says)
		})
	}
}
