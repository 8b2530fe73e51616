package framework

import "testing"

func TestExpected(t *testing.T) {
	for role, want := range map[Role]Verdict{Affected: Reproduced, Fixed: Prevented, Workaround: Prevented} {
		if got := (Variant{Role: role}).Expected(); got != want {
			t.Errorf("%s: %s, want %s", role, got, want)
		}
	}
}

func TestUnclassifiedScenario(t *testing.T) {
	s := Scenario{
		Incident:     Incident{Name: "drift", Facts: []Fact{{Says: "it drifts"}}},
		Variants:     []Variant{{Name: "old", Role: Affected}},
		MinMemoryGiB: 8, Small: &Scenario{},
		Tested: []Tested{{Name: "cilium.from", Default: "1.8.1"}, {Name: "cilium.to", Default: "1.11.1", Varied: true}},
		At: func(versions map[string]string) Variant {
			return Variant{Name: versions["cilium.from"] + " to " + versions["cilium.to"], Role: Fixed, Refused: true}
		},
	}
	for _, test := range []struct {
		name   string
		chosen map[string]string
		want   string // the variant's name, or the error
	}{
		{"the defaults", nil, "1.8.1 to 1.11.1"},
		{"both", map[string]string{"cilium.from": "1.8.2", "cilium.to": "1.12.0-rc1"}, "1.8.2 to 1.12.0-rc1"},
		{"the component's name is the varied one", map[string]string{"cilium": "1.12.0"}, "1.8.1 to 1.12.0"},
		{"twice", map[string]string{"cilium": "1.12.0", "cilium.to": "1.12.0"}, "cilium and cilium.to are the same: choose one version"},
		{"another component", map[string]string{"cillium.to": "1.12.0"}, `scenario "drift" tests no component "cillium.to"; nearest is "cilium.to"`},
		{"no version", map[string]string{"cilium.to": "1.12"}, `cilium.to: "1.12" is no version: expected one such as 1.11.1`},
		{"a v before it", map[string]string{"cilium.to": "v1.12.0"}, `cilium.to: "v1.12.0" is no version: expected one such as 1.11.1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			u, err := s.Unclassified(test.chosen)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = u.Variants[0].Name
				if v := u.Variants[0]; len(u.Variants) != 1 || v.Role != Unclassified || v.Expected() != "" || u.MinMemoryGiB != 0 || u.Small != nil {
					t.Errorf("%+v", u)
				}
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestUnderTest(t *testing.T) {
	const proxy, proxyNew, bystander, dns, helper = "registry.k8s.io/kube-proxy:v1.34.4", "registry.k8s.io/kube-proxy:v1.35.0", "docker.io/x/bystander:v2", "registry.k8s.io/coredns/coredns:v1.12.1", "quay.io/x/helper:9"
	scenario := func(tested string, variants ...Variant) Scenario {
		return Scenario{Tested: []Tested{{Name: "proxy", Default: tested}}, Variants: variants}
	}
	variant := func(version string, images ...string) Variant {
		return Variant{Components: map[string]string{"proxy": version}, Images: images}
	}
	both := scenario("1.34.4", variant("1.34.4", proxy, bystander), variant("1.35.0", proxyNew, bystander, helper))
	for _, test := range []struct {
		name  string
		s     Scenario
		image string
		want  bool
	}{
		{"the affected one", both, proxy, true},
		{"the fixed one", both, proxyNew, true},
		{"the same in all variants", both, bystander, false},
		{"in one variant alone", both, helper, true},
		{"named by none", both, "registry.k8s.io/pause:3.10", false},
		{"named by none, and of a version under test", both, "registry.k8s.io/kube-apiserver:v1.34.4", false},
		{"named by none in this version", both, "registry.k8s.io/kube-proxy:v1.33.0", true},
		{"a single variant's version", scenario("1.0.0", variant("1.34.4", proxy, dns)), proxy, true},
		{"beside it", scenario("1.0.0", variant("1.34.4", proxy, dns)), dns, false},
		{"a version that a run may choose", scenario("1.12.1", variant("1.34.4", proxy, dns)), dns, true},
		{"a remedy's version", scenario("1.0.0", variant("1.1.1", proxy, proxyNew)), proxyNew, true},
		{"a host with a port", scenario("1.0.0", variant("1.1.1", "h:5000/a/b:1.1.1")), "h:5000/a/b:1.1.1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.s.UnderTest(test.image); got != test.want {
				t.Errorf("%t, want %t", got, test.want)
			}
		})
	}
}
