//go:build lab

package release

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestGranted compares the table of the detector permission with the vendor's charts, rendered with their default values.
// With -update it writes the table. It needs the vendor's modules.
func TestGranted(t *testing.T) {
	var text strings.Builder
	text.WriteString("{\"cilium/cilium\": {")
	for i, version := range []string{"1.18.0", "1.18.4", "1.19.3", "1.19.5", "1.20.2"} {
		of := must.Get(published.Of(t.Context(), "cilium", version))(t)
		rendered := must.Get(of.Render(chart.Release{Name: "cilium", Namespace: "kube-system", KubeVersion: kubeadm.KubernetesVersion}))(t)
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
