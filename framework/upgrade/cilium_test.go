package upgrade

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// Versions that are built whole are upgraded, and no older ones.
func TestCiliumVersions(t *testing.T) {
	for _, test := range []struct{ from, to, image, refuses string }{
		{from: "1.18.0", to: "1.18.4", image: "quay.io/cilium/operator-generic:v1.18.4"},
		{from: "1.19.3", to: "1.18.4", image: "quay.io/cilium/cilium:v1.18.4"},
		{from: "1.17.8", to: "1.18.8", image: "quay.io/cilium/cilium:v1.17.8"},
		{from: "1.12.0", to: "1.17.8", refuses: "cilium from 1.12.0 to 1.17.8 has no lab: expected two versions from 1.15.0 on"},
		{from: "1.15.0", to: "1.14.19", refuses: "cilium from 1.15.0 to 1.14.19 has no lab"},
	} {
		u, err := Of("cilium", test.from, test.to, Settings{})
		if test.refuses != "" {
			must.Fail(t, err, test.refuses)
			continue
		}
		must.NoError(t, err)
		must.Contain(t, strings.Join(u.ImagesOf(test.from, test.to), " ")+" ", test.image+" ")
	}
}

// The objects of BGP move to the new version's types with all agents, if it serves the old ones too; and not back.
func TestMigration(t *testing.T) {
	bgp := ReadValues(t, "cilium-native-bgp")
	for _, test := range []struct {
		from, to string
		values   map[string]any
		want     bool
	}{
		{"1.17.8", "1.18.8", bgp, true},
		{"1.16.6", "1.19.6", bgp, true},
		{"1.17.8", "1.18.8", nil, false},
		{"1.16.6", "1.17.8", bgp, false},
		{"1.15.19", "1.18.8", bgp, false},
		{"1.18.8", "1.17.8", bgp, false},
		{"1.18.8", "1.19.6", bgp, false},
	} {
		u := declared(t, "cilium", test.from, test.to, Settings{Values: test.values})
		for d, want := range map[direction]bool{upgrading: test.want, rollingBack: false} {
			steps := u.rolloutSteps(d, test.from, test.to)
			last := steps[len(steps)-1]
			must.Equal(t, fmt.Sprint(d, test), want, last.id.Kind == kindMigrate)
		}
		must.Equal(t, u.about(), test.want, strings.Contains(u.about(), "become objects of cilium.io/v2"))
	}
}

// Manifests are refused without BGP, or if a version does not read them. Graceful restart is theirs, or the default.
func TestCiliumManifests(t *testing.T) {
	const config = "apiVersion: cilium.io/v2\nkind: CiliumBGPPeerConfig\nmetadata: {name: c}\nspec: {gracefulRestart: {enabled: true}}\n"
	const layer2 = "apiVersion: cilium.io/v2alpha1\nkind: CiliumL2AnnouncementPolicy\nmetadata: {name: l}\nspec: {loadBalancerIPs: true}\n"
	bgp, both := ReadValues(t, "cilium-native-bgp"), ReadValues(t, "cilium-native-bgp")
	both["l2announcements"] = map[string]any{"enabled": true}
	for _, test := range []struct {
		from, to, manifests string
		values              map[string]any
		want                string
	}{
		{"1.17.8", "1.18.8", config, bgp, "with graceful restart of BGP, as in the manifests"},
		{"1.18.8", "1.19.6", "", bgp, "without graceful restart of BGP, the vendor's default"},
		{"1.18.8", "1.19.6", "", nil, ""},
		{"1.18.8", "1.19.6", layer2, both, "without graceful restart of BGP, the vendor's default"},
		{"1.15.19", "1.18.8", layer2, both, "without graceful restart of BGP, the vendor's default"},
		{"1.18.8", "1.19.6", config, nil, "the manifests of Cilium are its objects of BGP and of layer 2, which it does not read unless the values have bgpControlPlane.enabled or l2announcements.enabled: true"},
		{"1.15.19", "1.18.8", config, bgp, "manifests with objects of BGP are taken from Cilium 1.16 on, which reads them"},
	} {
		u, err := Of("cilium", test.from, test.to, Settings{Values: test.values, Manifests: test.manifests})
		got := u.Under
		if err != nil {
			got = err.Error()
		}
		must.Equal(t, test.from+" to "+test.to, test.want, got)
		// Where nobody has said which graceful restart the user has, both are tried.
		unsaid := got == release.DefaultRestart
		must.Equal(t, got, unsaid, u.Otherwise != nil && u.Otherwise.Under == release.GracefulRestart)
		must.Equal(t, got, unsaid, u.Otherwise != nil)
	}
}

// The values decide what is measured and what runs beside it.
func TestCiliumModes(t *testing.T) {
	for _, name := range []string{"", "cilium-native-bgp", "cilium-tunnel-iptables"} {
		t.Run(name, func(t *testing.T) {
			var s Settings
			if name != "" {
				s.Values = ReadValues(t, name)
			}
			whole := declared(t, "cilium", "1.18.4", "1.19.3", s)
			kinds := each.Of(whole.Paths, func(k PathKind) string { return k.Name })
			native := name == "cilium-native-bgp"
			for _, kind := range []string{
				"outside to pod", "new connections, outside to pod", "UDP one way, outside to pod",
				"LoadBalancer address, outside, UDP", "LoadBalancer address, outside, new connections", "LoadBalancer address, outside, long-lived TCP",
			} {
				must.Equal(t, kind+" is measured", native, slices.Contains(kinds, kind))
			}
			for _, kind := range []string{"pod to outside", "pod to pod, other node", "cluster IP", "node port", "long-lived TCP", SourcePath, "DNS through CoreDNS, a Service's name"} {
				must.Equal(t, kind+" is measured", true, slices.Contains(kinds, kind))
			}
			for _, e := range whole.Ends {
				if e.Name == loadBalancer { // its pod is not reached from outside by its own address as well
					must.Equal(t, e, true, e.Pod != nil && *e.Pod == beside)
					own := func(p probe.Probe) bool { return p.From == outside && p.To == beside.Name }
					must.Equal(t, e, false, slices.ContainsFunc(whole.probes(), own))
				}
			}
			for _, p := range whole.probes() {
				matches := func(e framework.Endpoint) bool { return e.Name == p.To }
				must.Equal(t, "has an endpoint: "+p.Name, true, slices.ContainsFunc(whole.Ends, matches))
				tunnelled := p.From == outside && !strings.HasPrefix(p.To, "node port") && !native
				must.Equal(t, "is probed through a tunnel: "+p.Name, false, tunnelled)
			}
			images := strings.Join(whole.Images("1.18.4"), " ")
			must.Equal(t, images, name == "", strings.Contains(images, "registry.k8s.io/kube-proxy"))
			must.Contain(t, whole.about(), "envoy.enabled=false", "hubble.enabled=false")
		})
	}
}
