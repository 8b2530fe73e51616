package cilium

import (
	"net/netip"
	"testing"
	"text/template"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestManifests(t *testing.T) {
	at := place{APIServer: netip.MustParseAddrPort("10.0.0.11:6443"), ControlPlane: "master1"}
	speaks := at
	speaks.Peers = []topology.BGPPeer{
		{Address: netip.MustParseAddr("10.0.0.254"), ASN: 64524, ClusterASN: 64513},
		{Address: netip.MustParseAddr("10.0.0.253"), ASN: 64524, ClusterASN: 64513},
	}
	for _, test := range []struct {
		name      string
		state     Cilium
		at        place
		manifests []*template.Template
		objects   int
	}{
		{"speaker", Cilium{
			Agent: Agent("1.11.6"), Operator: Operator("1.11.6"), Restart: "by the operator",
			Config: Native.With(Config{"ipam": ClusterPool}), Speaker: true,
		}, speaks, []*template.Template{configManifest, operatorManifest, agentsManifest}, 10},
		{"rules", Cilium{
			Agent: Rules("1.11.1"), Config: Config{"masquerade": "false"},
		}, at, []*template.Template{configManifest, agentsManifest}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got string
			objects := 0
			for _, m := range test.manifests {
				text := must.Get(test.state.manifest(m, test.at))(t)
				objects += len(must.Get(workload.Objects(text))(t))
				got += "---\n" + text
			}
			must.Equal(t, "", test.objects, objects)
			goldentest.Compare(t, test.name+".yaml", got)
		})
	}
}

func TestConfigWithLeavesItsOriginalAlone(t *testing.T) {
	base := Config{"ipam": Kubernetes}
	more := base.With(Config{"ipam": ClusterPool, "masquerade": "true"})
	must.Equal(t, "", Config{"ipam": ClusterPool, "masquerade": "true"}, more)
	must.Equal(t, "the original has changed", Config{"ipam": Kubernetes}, base)
}

func TestMasquerade(t *testing.T) {
	saved := must.Read(t, "../../snapshot/testdata/cilium-1.11.1-nat.iptables-save")
	rules := must.Get(snapshot.ParseRules(string(saved), snapshot.NATTable))(t)
	native, pods := netip.MustParsePrefix("10.20.30.0/24"), netip.MustParsePrefix("10.20.30.32/27")
	for _, test := range []struct {
		name         string
		pods, native netip.Prefix
		want         bool
	}{
		{"the node's", pods, native, true},
		{"another node's", netip.MustParsePrefix("10.20.30.0/27"), native, false},
		{"but for another range", pods, netip.MustParsePrefix("10.20.30.0/25"), false},
	} {
		rule, there := Masquerade(rules, test.pods, test.native)
		must.Equal(t, test.name+": "+rule.Text, test.want, there)
	}
}
