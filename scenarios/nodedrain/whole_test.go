package nodedrain

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/topology/must"
)

// Versions that are built whole run whole. The images of older ones are the slices'.
func TestFormOfVersions(t *testing.T) {
	for version, want := range map[string]framework.Form{
		"1.11.4": framework.Slice, "1.12.0": framework.Slice, "1.14.19": framework.Slice,
		"1.15.19": framework.Whole, "1.17.8": framework.Whole, "1.20.2": framework.Whole,
	} {
		v := Scenario.At(map[string]string{"cilium": version})
		must.Equal(t, version, want, v.Form)
		for _, image := range release.Images(version) { // both forms have the vendor's names
			if !slices.Contains(v.Images, image) {
				t.Errorf("%s lacks %s: %q", version, image, v.Images)
			}
		}
		must.Equal(t, v.Components, version, v.Components["cilium"])
	}
}

// The whole gets the incident's mode, and the lab's settings do not take it away.
func TestWholeIncident(t *testing.T) {
	server := netip.MustParseAddrPort("10.4.94.32:6443")
	whole := wholeIncident("1.19.3")
	for path, want := range map[string]any{
		"ipam.mode": "cluster-pool", "routingMode": "native", "autoDirectNodeRoutes": true, "enableIPv4Masquerade": false,
		"bgpControlPlane.enabled": true,
	} {
		got, _ := chart.Get(whole.Values, path)
		must.Equal(t, path, want, got)
	}
	set := map[string]any{}
	for _, s := range whole.Settings(lab, server) {
		set[s.Path] = s.Value
		if _, ours := chart.Get(whole.Values, s.Path); ours {
			t.Errorf("the lab sets %s, which the incident has as well", s.Path)
		}
	}
	for path, want := range map[string]any{ // the agents reach the API server, and the ranges are the incident's
		"k8sServiceHost": "10.4.94.32", "k8sServicePort": int64(6443),
		"ipv4NativeRoutingCIDR": podCIDR.String(), "ipam.operator.clusterPoolIPv4MaskSize": int64(24),
	} {
		must.Equal(t, path, want, set[path])
	}
	if node := whole.Values["operator"].(map[string]any)["nodeSelector"].(map[string]any)["kubernetes.io/hostname"]; node == removed {
		t.Errorf("the operator runs on %s, which goes away", node)
	}
	agents, _ := chart.Get(whole.WithoutAgents().Values, "agent")
	must.Equal(t, "agent, without agents", false, agents)
	_, there := chart.Get(whole.Values, "agent")
	must.Equal(t, "the release itself was changed", false, there)
	p := release.PeeringOf(lab)
	want := []netip.Addr{netip.MustParseAddr("10.4.94.239"), netip.MustParseAddr("10.4.94.238")}
	if !slices.Equal(p.Routers, want) || p.RoutersASN != 64524 || p.ASN != 64513 || p.GracefulRestart {
		t.Errorf("peering is %+v", p)
	}
}
