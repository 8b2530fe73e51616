//go:build lab

package published

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestVendorsCharts renders the vendors' own charts, from their Go modules.
func TestVendorsCharts(t *testing.T) {
	for _, test := range []struct {
		component, version, users string
		objects                   []string // some of them
		unread                    string
	}{
		{"cilium", "1.18.4", "{routingMode: native, autoDirectNodeRoutes: true, devices: [eth0], nodePort: {directRoutingDevice: eth0}, typo: 1}",
			[]string{"ConfigMap cilium-config", "DaemonSet cilium", "Deployment cilium-operator"}, "typo"},
		{"cilium", "1.19.3", "{updateStrategy: {rollingUpdate: {maxSurge: 1}}, bgpControlPlane: {enabled: true, enable: true}}",
			[]string{"ConfigMap cilium-config", "DaemonSet cilium", "Deployment cilium-operator"}, "bgpControlPlane.enable"},
		{"metallb", "0.14.9", "{speaker: {frr: {enabled: false}, fr: {}}}",
			[]string{"CustomResourceDefinition bgppeers.metallb.io", "DaemonSet metallb-speaker", "Deployment metallb-controller"}, "speaker.fr"},
	} {
		t.Run(test.component+" "+test.version, func(t *testing.T) {
			var users map[string]any
			must.NoError(t, yaml.Unmarshal([]byte(test.users), &users))
			c := must.Get(Of(t.Context(), test.component, test.version))(t)
			release := chart.Release{Name: test.component, Namespace: "kube-system", Values: users, KubeVersion: "1.34.4"}
			if unread, err := c.Unread(t.Context(), release); err != nil || len(unread) != 1 || unread[0].String() != test.unread {
				t.Errorf("unread: %v, %v, want %s", unread, err, test.unread)
			}
			r := must.Get(c.Render(release))(t)
			got := each.Of(r.Objects, func(o unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() })
			for _, want := range test.objects {
				if !slices.Contains(got, want) {
					t.Errorf("there is no %s among %v", want, got)
				}
			}
			if config := chart.Find(r.Objects, "ConfigMap", "cilium-config"); config != nil && test.version == "1.18.4" {
				data, _, _ := unstructured.NestedStringMap(config.Object, "data")
				if data["routing-mode"] != "native" || data["devices"] != "eth0" || data["direct-routing-device"] != "eth0" {
					t.Errorf("cilium-config: %v", data)
				}
			}
		})
	}
}

func TestChartIsNotPublished(t *testing.T) {
	_, err := Of(t.Context(), "cilium", "1.18.99")
	var missing *images.NotPublishedError
	if !errors.As(err, &missing) || missing.Required {
		t.Errorf("got %v", err)
	}
}
