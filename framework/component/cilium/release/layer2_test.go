package release

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// The lab's Services have labels that one of the user's policies selects, and the lab's nodes answer.
func TestAdaptLayer2(t *testing.T) {
	addresses := snapshot.AddressRange{First: netip.MustParseAddr("10.62.4.128"), Last: netip.MustParseAddr("10.62.4.143")}
	policy := func(spec string) string {
		return "apiVersion: cilium.io/v2alpha1\nkind: CiliumL2AnnouncementPolicy\nmetadata: {name: l2}\nspec: {" + spec + "}\n---\n"
	}
	for _, test := range []struct{ name, text, labels, said string }{
		{"none", "", "map[answered-by:lab]", "CiliumL2AnnouncementPolicy: none selects Services of type LoadBalancer by labels that the lab's can have: the lab has its own"},
		{"all Services", policy("loadBalancerIPs: true, nodeSelector: {matchLabels: {kubernetes.io/os: linux}}"), "map[answered-by:lab]",
			"CiliumL2AnnouncementPolicy l2: nodeSelector: a map of 1 is removed: the agents of a and b answer"},
		{"by a label", policy("loadBalancerIPs: true, interfaces: [^eth0$], serviceSelector: {matchLabels: {lb: l2}}"), "map[answered-by:lab lb:l2]",
			"CiliumL2AnnouncementPolicy l2: interfaces: a list of 1 is removed: the nodes have one network"},
		{"all but one", policy("loadBalancerIPs: true, serviceSelector: {matchExpressions: [{key: lb, operator: NotIn, values: [bgp]}]}"), "map[answered-by:lab]", ""},
		{"by name", policy("loadBalancerIPs: true, serviceSelector: {matchLabels: {io.kubernetes.service.name: web}}"), "map[answered-by:lab]",
			"CiliumL2AnnouncementPolicy: none selects Services of type LoadBalancer by labels that the lab's can have: the lab has its own"},
		{"external addresses, then others", policy("externalIPs: true") + policy("loadBalancerIPs: true, serviceSelector: {matchLabels: {lb: l2}}"), "map[answered-by:lab lb:l2]", ""},
	} {
		l := must.Get(AdaptLayer2(test.text, addresses, []string{"a", "b"}))(t)
		must.Equal(t, test.name+": the labels", test.labels, fmt.Sprint(l.Labels))
		must.Equal(t, test.name+": what is said", test.said, strings.Join(l.Replaced, "; "))
		selected := false
		for _, o := range l.Of(kindLayer2) {
			nodes, _ := chart.Get(o.Object, "spec.nodeSelector")
			must.Equal(t, test.name+": the node b is selected", true, objects.Selects(objects.Selector(nodes), map[string]string{"kubernetes.io/hostname": "b"}))
			services, there := chart.Get(o.Object, "spec.serviceSelector")
			selected = selected || !there || objects.Selects(objects.Selector(services), l.Labels)
		}
		must.Equal(t, test.name+": pools, and the Services are selected", [2]any{1, true}, [2]any{len(l.Of(kindPool)), selected})
	}
}

func TestLeftOut(t *testing.T) {
	text := "{apiVersion: cilium.io/v2, kind: CiliumLoadBalancerIPPool, metadata: {name: p}}\n---\n" +
		"{apiVersion: cilium.io/v2, kind: CiliumBGPClusterConfig, metadata: {name: c}}\n---\n" +
		"{apiVersion: cilium.io/v2alpha1, kind: CiliumL2AnnouncementPolicy, metadata: {name: l}}\n---\n" +
		"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: np}}\n"
	for _, test := range []struct {
		bgp, layer2 bool
		want        []string
	}{
		{true, true, nil},
		{true, false, []string{"CiliumL2AnnouncementPolicy l: left out: the values lack l2announcements.enabled: true"}},
		{false, true, []string{
			"CiliumLoadBalancerIPPool p: left out: the addresses for which the lab's nodes answer by ARP are in their network",
			"CiliumBGPClusterConfig c: left out: the values lack bgpControlPlane.enabled: true",
			"CiliumNetworkPolicy np: left out: it is not of Cilium's types of BGP and layer 2",
		}},
	} {
		must.Equal(t, test, test.want, must.Get(LeftOut(text, test.bgp, test.layer2))(t))
	}
	_, err := LeftOut("{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: np}}", true, true)
	must.Contain(t, fmt.Sprint(err), "none of its 1 objects is of Cilium's types of BGP and layer 2: expected CiliumBGPClusterConfig, ")
}
