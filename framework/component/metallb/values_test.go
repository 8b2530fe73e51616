package metallb

import (
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	return must.Get(placeholder.Values{}.Map([]byte(text)))(t)
}

func TestMode(t *testing.T) {
	for _, test := range []struct{ version, values, want string }{
		{"0.13.9", "", Native},
		{"0.13.12", "", FRR},
		{"0.15.3", "{speaker: {frr: {image: {tag: 10.4.1}}}}", FRR},
		{"0.13.9", "{speaker: {frr: {enabled: true}}}", FRR},
		{"0.14.9", "{speaker: {frr: {enabled: false}}}", Native},
		{"0.14.9", "{speaker: {frr: {enabled: false}}, frrk8s: {enabled: true}}", FRRK8s},
		{"0.14.9", "{speaker: {frr: {enabled: false}}, frrk8s: {external: true, namespace: frr-k8s-system}}", FRRK8s},
	} {
		r := Release{Version: test.version, Values: values(t, test.values)}
		must.Equal(t, test, test.want, r.Mode())
		must.Equal(t, test, test.want == FRR, slices.Contains(r.Images(), "quay.io/frrouting/frr:10.3"))
		for _, mode := range []string{Native, FRR} {
			r.Values = In(mode, nil)
			must.Equal(t, test.version, mode, r.Mode())
		}
	}
	must.Equal(t, "an upgrade of the chart's defaults", "native to frr", ModeOf(Release{Version: "0.13.9"}, Release{Version: "0.13.12"}))
}

func TestAdapt(t *testing.T) {
	users := values(t, `
loadBalancerClass: metallb
speaker:
  logLevel: debug
  image: {tag: v0.14.8-ours}
  tolerateMaster: false
  extraContainers: [{name: ours, env: [{name: TOKEN, value: hunter2}]}]
  updateStrategy: {type: RollingUpdate}
  frr: {enabled: true, metricsPort: 7499, image: {tag: 9.1.0}}
prometheus: {serviceMonitor: {enabled: true}, podMonitor: {enabled: false}}
`)
	adapted, replaced := Adapt(users, "0.14.8", "0.14.9")
	got := each.Of(replaced, chart.Replacement.String)
	want := []string{
		`speaker.image: a map of 1 is replaced by the chart's default: the lab's registry has the images that relapse builds of each version, under the vendor's names`,
		`speaker.tolerateMaster: false is replaced by the chart's default: a lab's nodes have other labels, taints and classes, and a speaker each`,
		`speaker.extraContainers: a list of 1 is replaced by the chart's default: relapse does not build their images`,
		`prometheus.serviceMonitor.enabled: true is replaced by false: a lab has no Prometheus operator`,
		`loadBalancerClass: a text is replaced by the chart's default: the lab's Services name no class`,
		`speaker.updateStrategy: a map of 1 is replaced by {"type":"OnDelete"}: speakers are replaced node by node`,
		`speaker.frr.image.tag: "9.1.0" is replaced by "10.3": the FRR of a lab is Debian 13's`,
	}
	must.Equal(t, "replaced", want, got)
	for path, want := range map[string]any{"speaker.logLevel": "debug", "speaker.frr.enabled": true} {
		got, _ := chart.Get(adapted, path)
		must.Equal(t, path, want, got)
	}
	if _, there := chart.Get(users, "loadBalancerClass"); !there {
		t.Error("the user's values were changed")
	}
}

// The FRR of the values is replaced in each mode with FRR, whether values, a version's default or the caller choose it.
func TestReplacedFRR(t *testing.T) {
	const text = "{speaker: {frr: {image: {tag: 9.1.0}}}}"
	const replacement = `speaker.frr.image.tag: "9.1.0" is replaced by "10.3": the FRR of a lab is Debian 13's`
	for _, test := range []struct {
		name, values string
		versions     []string
		mode         string
		want         []string
	}{
		{"the chart's default", text, []string{"0.14.8", "0.14.9"}, "", []string{replacement}},
		{"the default of the new chart", text, []string{"0.13.9", "0.13.12"}, "", []string{replacement}},
		{"no FRR", text, []string{"0.13.5", "0.13.9"}, "", nil},
		{"a mode besides the values", text, []string{"0.13.5", "0.13.9"}, FRR, []string{replacement}},
		{"both", text, []string{"0.14.8", "0.14.9"}, FRR, []string{replacement}},
	} {
		t.Run(test.name, func(t *testing.T) {
			adapted, replaced := Adapt(values(t, test.values), test.versions...)
			got := each.Of(replaced, chart.Replacement.String)
			if test.mode != "" {
				adapted = In(test.mode, adapted)
			}
			must.Equal(t, "", test.want, append(got, Overrides(adapted, test.versions...)...))
		})
	}
}

// A dual lab announces both families over one session: by default up to 0.14, and from 0.15 on by a setting
// that earlier versions do not have.
func TestAnnouncesBothFamilies(t *testing.T) {
	lab := topology.Topology{Routers: []topology.Router{{
		Name: "tor", Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.66.4.254")}}, Peers: []topology.Peers{{Network: "nodes"}},
	}}}
	for _, test := range []struct {
		version string
		dual    bool
		pool    []string
		asks    bool
	}{
		{"0.15.2", false, []string{"10.66.128.0/24"}, false},
		{"0.14.9", true, []string{"10.66.128.0/24", "fd5c:3f1e:a2d7::a42:8000/120"}, false},
		{"0.15.2", true, []string{"10.66.128.0/24", "fd5c:3f1e:a2d7::a42:8000/120"}, true},
	} {
		lab.Dual = test.dual
		r := must.Get(Release{}.announce(lab, netip.MustParsePrefix("10.66.128.0/24"), "worker1"))(t)
		pool, _, _ := unstructured.NestedStringSlice(r.Objects[0].Object, "spec", "addresses")
		must.Equal(t, "pool", test.pool, pool)
		_, asks, _ := unstructured.NestedBool(r.forVersion(test.version)[2].Object, "spec", "dualStackAddressFamily")
		must.Equal(t, test, test.asks, asks)
	}
}
