package lostpermission

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/kube"
	"github.com/relapse-dev/relapse/topology/must"
)

// A repeated run has no precursor, so its fault needs the upgrade itself: it has not taken
// effect under the operator of the old release.
func TestRepeatedFaultIsUnderTheNewRelease(t *testing.T) {
	for _, v := range Scenario.Variants {
		for operator, want := range map[string]string{
			v.Components["cilium.from"]: "is of " + cilium.Operator(v.Components["cilium.from"]),
			v.Components["cilium.to"]:   "its processes were not ended", // the agent's, which is the second condition
		} {
			for _, c := range verdict.Cases(v, verdict.Options{Repeat: 2}) {
				r := &framework.Run{Lab: &kindlab.Lab{Clusters: []*kindlab.Cluster{{Client: withOperator(t, operator)}}}}
				effective, saw, err := c.Script.Fault.TookEffect(t.Context(), r)
				if effective || err != nil || !strings.Contains(saw, want) {
					t.Errorf("%s, operator of %s: %t, %q, %v; want %q", c.Label, operator, effective, saw, err, want)
				}
			}
		}
	}
}

// Latent findings of this detector fail the check, and findings of other detectors do not.
func TestPermitted(t *testing.T) {
	for _, tt := range []struct {
		name  string
		found []detect.Finding
		holds bool
	}{
		{name: "nothing", holds: true},
		{name: "of another detector", found: []detect.Finding{{Detector: detect.RouteOwnership{}.Name(), State: detect.Latent}}, holds: true},
		{name: "latent", found: []detect.Finding{{Detector: detect.Permission{}.Name(), State: detect.Latent, Says: "it lacks one"}}},
	} {
		holds, saw, err := permitted.Holds(t.Context(), &framework.Run{Findings: func() []detect.Finding { return tt.found }})
		if holds != tt.holds || err != nil || !holds && saw != "it lacks one" {
			t.Errorf("%s: %t, %q, %v", tt.name, holds, saw, err)
		}
	}
}

// withOperator is a client of an API server that has the operator of a version and no other pod.
func withOperator(t *testing.T, version string) *kube.Client {
	answer := func(body any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body) // a client that has gone sees nothing
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api", answer(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}))
	mux.HandleFunc("GET /apis", answer(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}))
	mux.HandleFunc("GET /api/v1", answer(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"list"}}},
	}))
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods", answer(corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"},
		Items:    []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: cilium.Operator(version)}}}}},
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return must.Get(kube.New(&rest.Config{Host: server.URL, QPS: -1}))(t)
}
