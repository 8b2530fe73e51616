package upgrade

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestOf(t *testing.T) {
	const ipvs = "kind: KubeProxyConfiguration\nmode: ipvs\n"
	for _, test := range []struct {
		component, from, to string
		settings            Settings
		mode                string
		nodes               int // how many nodes are changed
		guests              int
		err                 string
	}{
		{"kube-proxy", "1.35.4", "1.36.3", Settings{Mode: "ipvs"}, "ipvs", 2, 2, ""}, // as it is stored
		{"kube-proxy", "1.35.4", "1.36.3", Settings{}, "iptables", 3, 0, ""},
		{"kube-proxy", "1.35.4", "1.36.3", Settings{Mode: "nftables"}, "nftables", 3, 0, ""},
		{"kube-proxy", "1.35.4", "1.36.3", Settings{Config: ipvs}, "ipvs", 2, 2, ""},
		{"kube-proxy", "1.13.2", "1.36.3", Settings{}, "", 0, 0, "an upgrade of kube-proxy from 1.13.2 to 1.36.3 has no lab: expected two versions from 1.31.0 on"},
		{"kube-proxy", "1.35.4", "1.36.3", Settings{Config: "kind: Pod"}, "", 0, 0, "the KubeProxyConfiguration: its kind is Pod"},
		{"coredns", "1.12.1", "1.15.0", Settings{}, "", 1, 0, ""},
		{"coredns", "1.12.1", "1.15.0", Settings{Config: ".:53 {"}, "", 0, 0, "the Corefile: it has no plugin kubernetes"},
		{"coredns", "1.12.1", "1.15.0", Settings{Mode: "ipvs"}, "", 0, 0, "CoreDNS has neither modes"},
		{"metallb", "0.14.8", "0.14.9", Settings{}, "frr", 3, 0, ""},
		{"metallb", "0.13.9", "0.13.12", Settings{}, "native to frr", 3, 0, ""},
		{"metallb", "0.13.9", "0.13.12", Settings{Mode: "native to frr"}, "native to frr", 3, 0, ""}, // as it is stored
		{"metallb", "0.14.8", "0.14.9", Settings{Mode: "native"}, "native", 3, 0, ""},
		{"metallb", "0.14.8", "0.14.9", Settings{Mode: "frr-k8s"}, "frr-k8s", 3, 0, ""}, // Fit refuses it
		{"metallb", "0.14.8", "0.14.9", Settings{Mode: "layer2"}, "", 0, 0, `"layer2" is no mode of MetalLB`},
		{"metallb", "0.14.8", "0.14.9", Settings{Mode: "frr", Values: metallb.In("native", nil)}, "", 0, 0, "the mode frr contradicts the values, which choose native"},
		{"metallb", "0.14.8", "0.14.9", Settings{Manifests: "kind: Pod\napiVersion: v1\n"}, "", 0, 0, "MetalLB's objects: none of its 1 objects is of MetalLB's types"},
		{"metallb", "0.14.8", "0.14.9", Settings{Config: "x"}, "", 0, 0, "MetalLB is configured by the values of its chart"},
		{"calico", "3.28.5", "3.28.5", Settings{Mode: "ipip"}, "", 0, 0, "the lab of an upgrade of calico takes no mode"},
		{"calicoo", "3.28.5", "3.28.5", Settings{}, "", 0, 0, `no upgrade of calicoo; nearest is "calico"`},
	} {
		u, err := Of(test.component, test.from, test.to, test.settings)
		if test.err != "" {
			must.Fail(t, err, test.err)
			continue
		}
		must.NoError(t, err)
		guests := each.Where(u.Topology.Clusters[0].Nodes, func(n topology.Node) bool { return n.Kernel != "" })
		got := [...]any{u.Mode, len(u.changed()), len(guests)}
		must.Equal(t, test.component, [...]any{test.mode, test.nodes, test.guests}, got)
	}
}

// A lab has two address families if the values of Cilium or a pool of MetalLB have both, or on request. Then each kind
// of path has one of IPv6 beside it, unless it is for IPv4 alone.
func TestFamilies(t *testing.T) {
	const pool = "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p}\nspec: {addresses: [192.0.2.0/28, 2001:db8::/120]}\n"
	const byARP = pool + "---\napiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: l2}\n"
	dual := map[string]any{"ipv6": map[string]any{"enabled": true}, "l2announcements": map[string]any{"enabled": true}, "bgpControlPlane": map[string]any{"enabled": true}}
	unused := "addresses of IPv6 in the pools are not used, in the mode native: " + metallb.NativeIPv4
	const alone = "is of IPv4 alone: family dual is for MetalLB, and for Cilium from 1.15.0 on"
	for _, test := range []struct {
		name, component, from, to string
		settings                  Settings
		dual                      bool
		says, err                 string
	}{
		{"nothing", "metallb", "0.14.8", "0.14.9", Settings{}, false, "", ""},
		{"asked for", "metallb", "0.14.8", "0.14.9", Settings{Family: "dual", Subnets: netip.MustParsePrefix("10.208.0.0/20")}, true, "", ""},
		{"a pool", "metallb", "0.14.8", "0.14.9", Settings{Manifests: pool}, true, "", ""},
		{"a pool, and IPv4 asked for", "metallb", "0.14.8", "0.14.9", Settings{Manifests: pool, Family: "ipv4"}, false, "addresses of IPv6 in the pools are not used: " + onlyIPv4, ""},
		{"a pool, and native BGP", "metallb", "0.14.8", "0.14.9", Settings{Manifests: pool, Mode: "native"}, false, unused, ""},
		{"asked for, and native BGP", "metallb", "0.14.8", "0.14.9", Settings{Family: "dual", Mode: "native"}, true, "", ""}, // Fit refuses it
		{"a pool by ARP alone", "metallb", "0.14.8", "0.14.9", Settings{Manifests: byARP, Family: "dual"}, true, ofIPv4, ""},
		{"values", "cilium", "1.18.4", "1.19.3", Settings{Values: dual}, true, ofIPv4, ""},
		{"values, and IPv4 asked for", "cilium", "1.18.4", "1.19.3", Settings{Values: dual, Family: "ipv4"}, false, "ipv6.enabled: true is replaced by false: " + onlyIPv4, ""},
		{"the chart's values", "cilium", "1.18.4", "1.19.3", Settings{Family: "dual"}, true, "", ""},
		{"another component", "coredns", "1.12.1", "1.15.0", Settings{Family: "dual"}, false, "", "coredns 1.12.1 to 1.15.0 " + alone},
		{"no family", "metallb", "0.14.8", "0.14.9", Settings{Family: "ipv6"}, false, "", `family "ipv6": expected ipv4 or dual`},
	} {
		t.Run(test.name, func(t *testing.T) {
			u, err := Of(test.component, test.from, test.to, test.settings)
			if test.err != "" {
				must.Fail(t, err, test.err)
				return
			}
			must.NoError(t, err)
			must.Equal(t, test.name, test.dual, u.Topology.Dual)
			must.Equal(t, u.Replaced, true, test.says == "" || slices.Contains(u.Replaced, test.says))
			for _, k := range u.Paths {
				name, six := strings.CutSuffix(k.Name, ", IPv6")
				beside := slices.ContainsFunc(u.Paths, func(o PathKind) bool { return o.Name == name+", IPv6" && len(o.Probes) == len(k.Probes) })
				ofIPv4 := strings.HasPrefix(name, "address by ARP") || strings.HasPrefix(name, "DNS")
				must.Equal(t, k, [...]bool{test.dual && !ofIPv4, six}, [...]bool{beside, k.Probes[0].V6})
			}
			refused := u.Fit != nil && errors.As(u.Fit(), new(*host.UnfitError))
			must.Equal(t, "refused", u.Mode == metallb.Native && test.settings.Family == framework.Dual, refused)
		})
	}
}

// An upgrade on other subnets has its endpoints outside the pods there.
func TestWithin(t *testing.T) {
	prefix, services := netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")
	for _, d := range declaredUpgrades {
		u := declared(t, d.component, d.from, d.to, Settings{Subnets: prefix})
		must.NoError(t, u.Topology.Validate())
		for _, m := range u.Topology.Members() {
			for _, l := range m.Links {
				must.Equal(t, l, true, prefix.Contains(l.Address))
			}
		}
		r := &framework.Run{Topology: u.Topology}
		addresses := [...]string{r.Address(tor).String(), u.Topology.Routers[0].ID.String()}
		must.Equal(t, "address and ID of the ToR", [...]string{"10.200.0.254", "10.200.0.254"}, addresses)
		for _, e := range u.Ends {
			if e.Address == nil || !e.Address(r).IsValid() { // MetalLB chooses the address of its Service in the lab
				continue
			}
			at := e.Address(r).Addr()
			must.Equal(t, e.Name, true, prefix.Contains(at) || services.Contains(at))
		}
		own := Settings{Subnets: u.Topology.Clusters[0].PodCIDR}
		must.Fail(t, must.Err(Of(d.component, d.from, d.to, own)), "pod range")
	}
	// The upgrade under the other setting has the same subnets, and keeps the same secrets out of its logs.
	values := ReadValues(t, "cilium-native-bgp")
	values["extraEnv"] = []any{map[string]any{"name": "TOKEN", "value": "correct-horse"}}
	other := declared(t, "cilium", "1.18.4", "1.19.3", Settings{Values: values, Subnets: prefix}).Otherwise
	got := [...]bool{prefix.Contains(other.Topology.Networks[0].Subnet.Addr()), slices.Contains(other.secrets, "correct-horse")}
	must.Equal(t, other.Besides, [...]bool{true, true}, got)
}
