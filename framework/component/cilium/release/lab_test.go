//go:build lab

package release

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// In each mode the chart of each version asks only for images that are built, and its agents are replaced one by one.
// It needs the vendor's modules.
func TestRender(t *testing.T) {
	lab := topology.Topology{Clusters: []topology.Cluster{{PodCIDR: netip.MustParsePrefix("10.62.64.0/20"), NodeMask: 24}}}
	for _, version := range []string{"1.15.0", "1.15.19", "1.16.0", "1.17.8", "1.18.0", "1.18.4", "1.19.3", "1.20.2"} {
		for name, text := range map[string]string{
			"defaults": "",
			"native":   "{routingMode: native, kubeProxyReplacement: true, bpf: {masquerade: true}, bgpControlPlane: {enabled: true}}",
			"tunnel":   "{routingMode: tunnel, kubeProxyReplacement: true}",
			"Envoy":    "{envoy: {enabled: true}, hubble: {enabled: true}}",
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				r := Release{Version: version, Values: values(t, text)}
				lab.Dual = name == "native"
				objects := must.Get(r.render(t.Context(), lab, netip.MustParseAddrPort("10.62.4.11:6443")))(t)
				var all []string
				for _, o := range objects {
					all = append(all, images(o.Object)...)
				}
				for _, image := range all {
					if !slices.Contains(Images(version), image) {
						t.Errorf("the image %s is not built", image)
					}
				}
				if len(all) < 2 {
					t.Errorf("only %q run", all)
				}
				agents := chart.Find(objects, "DaemonSet", "cilium")
				if agents == nil {
					t.Fatal("there are no agents")
				}
				if text, err := agents.MarshalJSON(); err != nil || strings.Contains(string(text), "SYS_RESOURCE") {
					t.Errorf("agents ask for a capability that not every machine has: %v", err)
				}
				strategy, _, err := unstructured.NestedMap(agents.Object, "spec", "updateStrategy")
				if err != nil || len(strategy) != 1 || strategy["type"] != "OnDelete" {
					t.Errorf("%v, %v", strategy, err)
				}
				config := chart.Find(objects, "ConfigMap", "cilium-config")
				if config == nil {
					t.Fatal("there is no configuration")
				}
				mode, _, _ := unstructured.NestedString(config.Object, "data", "routing-mode")
				must.Equal(t, mode, r.Values.Native(), mode == "native")
			})
		}
	}
}

// images are all images that a value names, at any depth.
func images(v any) []string {
	var all []string
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if text, ok := inner.(string); ok && key == "image" && strings.Contains(text, "/") {
				all = append(all, text)
			}
			all = append(all, images(inner)...)
		}
	case []any:
		for _, inner := range v {
			all = append(all, images(inner)...)
		}
	}
	return all
}

// TestGranted compares the table of the detector permission with the vendor's charts, rendered with their default values.
// With -update it writes the table. It needs the vendor's modules.
func TestGranted(t *testing.T) {
	var text strings.Builder
	text.WriteString("{\"cilium/cilium\": {")
	for i, version := range []string{"1.18.0", "1.18.4", "1.19.3", "1.19.5", "1.20.2"} {
		c := must.Get(published.Of(t.Context(), "cilium", version))(t)
		rendered := must.Get(c.Render(chart.Release{Name: "cilium", Namespace: "kube-system", KubeVersion: kubeadm.KubernetesVersion}))(t)
		found := chart.Find(rendered.Objects, "ClusterRole", "cilium")
		if found == nil {
			t.Fatalf("the chart of %s has no ClusterRole cilium", version)
		}
		var role rbacv1.ClusterRole
		must.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &role))
		fmt.Fprintf(&text, "%s\n %q: [", strings.Repeat(",", min(i, 1)), version)
		for j, r := range role.Rules {
			rule, err := json.Marshal(snapshot.Permission{Groups: r.APIGroups, Resources: r.Resources, Verbs: r.Verbs, Names: r.ResourceNames})
			must.NoError(t, err)
			fmt.Fprintf(&text, "%s\n  %s", strings.Repeat(",", min(j, 1)), rule)
		}
		text.WriteString("]")
	}
	text.WriteString("}}\n")
	goldentest.Compare(t, "../../../../detect/granted.json", text.String())
}
