//go:build lab

package configdrift

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/goldentest"
)

// TestConfigMaps compares the ConfigMaps in testdata, which the golden tests judge, with those that the
// vendor's charts render from their own default values.
func TestConfigMaps(t *testing.T) {
	for _, version := range []string{"1.11.6", "1.18.4"} {
		c, err := chart.Of(t.Context(), "cilium", version)
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := c.Render(chart.Release{Name: "cilium", Namespace: "kube-system", KubeVersion: "1.34.4"})
		if err != nil {
			t.Fatal(err)
		}
		data, _, err := unstructured.NestedStringMap(chart.Find(rendered.Objects, "ConfigMap", "cilium-config").Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		goldentest.Compare(t, version+".yaml", string(text))
	}
}
