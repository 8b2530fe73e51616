package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/relapse-dev/relapse/topology/lab/kube"
	"github.com/relapse-dev/relapse/topology/must"
)

// newAPIServer is an API server that has one ConfigMap in each namespace, named after it.
func newAPIServer(t *testing.T) *rest.Config {
	reply := func(w http.ResponseWriter, body any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(body) // a client that has gone sees nothing
	}
	answer := func(body any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { reply(w, body) }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api", answer(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}))
	mux.HandleFunc("GET /apis", answer(metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}))
	mux.HandleFunc("GET /api/v1", answer(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"list"}}},
	}))
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/configmaps", func(w http.ResponseWriter, r *http.Request) {
		reply(w, corev1.ConfigMapList{
			TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"},
			Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("namespace")}}},
		})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, QPS: -1}
}

// Two installations share the client of their cluster. Each must list its own namespace; with
// klient.New in place of kube.New this fails, under the race detector at once.
func TestResourcesShared(t *testing.T) {
	client := must.Get(kube.New(newAPIServer(t)))(t)
	var group errgroup.Group
	for _, namespace := range []string{"kube-system", "load"} {
		group.Go(func() error {
			for range 200 {
				var list corev1.ConfigMapList
				if err := client.Resources(namespace).List(t.Context(), &list); err != nil {
					return err
				}
				if got := list.Items[0].Name; got != namespace {
					return fmt.Errorf("listing namespace %q: got that of %q", namespace, got)
				}
			}
			return nil
		})
	}
	must.NoError(t, group.Wait())
}
