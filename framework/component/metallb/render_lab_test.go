//go:build lab

package metallb

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology/must"
)

// In each mode the chart of each version asks only for images that are built, runs the implementation of BGP that the
// mode names, and has its speakers replaced one by one. It needs the vendor's modules.
func TestRender(t *testing.T) {
	for _, version := range []string{"0.13.5", "0.13.9", "0.13.12", "0.14.8", "0.14.9", "0.15.2", "0.15.3"} {
		for name, users := range map[string]map[string]any{"the chart's default": nil, Native: In(Native, nil), FRR: In(FRR, nil)} {
			t.Run(version+" "+name, func(t *testing.T) {
				r := Release{Version: version, Values: users}
				objects := must.Get(r.render(t.Context()))(t)
				var speaker appsv1.DaemonSet
				var controller appsv1.Deployment
				for kind, into := range map[string]any{"DaemonSet": &speaker, "Deployment": &controller} {
					name := map[string]string{"DaemonSet": Speaker.Name, "Deployment": Controller.Name}[kind]
					found := chart.Find(objects, kind, name)
					if found == nil {
						t.Fatalf("there is no %s %s", kind, name)
					}
					must.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, into))
				}
				var images []string
				mode := Native
				for _, c := range slices.Concat(speaker.Spec.Template.Spec.InitContainers, speaker.Spec.Template.Spec.Containers, controller.Spec.Template.Spec.Containers) {
					images = append(images, c.Image)
					if slices.Contains(c.Env, corev1.EnvVar{Name: "METALLB_BGP_TYPE", Value: "frr"}) {
						mode = FRR
					}
				}
				slices.Sort(images)
				images = slices.Compact(images)
				want := slices.Sorted(slices.Values(r.Images()))
				if !slices.Equal(images, want) {
					t.Errorf("images %q, want %q", images, want)
				}
				must.Equal(t, "the chart runs the mode", r.Mode(), mode)
				if s := speaker.Spec.UpdateStrategy; s.Type != appsv1.OnDeleteDaemonSetStrategyType || s.RollingUpdate != nil {
					t.Errorf("strategy %+v", s)
				}
				for name, value := range Speaker.Pods.Labels {
					must.Equal(t, name, value, speaker.Spec.Template.Labels[name])
				}
			})
		}
	}
}
