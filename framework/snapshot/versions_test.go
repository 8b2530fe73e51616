package snapshot

import (
	"net/http"
	"sync/atomic"
	"testing"
)

// A cluster without Cilium gets it while one collector goes on, with v2alpha1 alone; then its server
// starts anew, and does not know the lists for a moment.
func TestListOfAnotherVersion(t *testing.T) {
	var phase atomic.Int32
	const group = "/apis/cilium.io/"
	list := answer(http.StatusOK, `{"kind":"CiliumBGPClusterConfigList","apiVersion":"cilium.io/v2alpha1","metadata":{"resourceVersion":"1"},"items":[]}`)
	not := answer(http.StatusNotFound, "404 page not found\n")
	c := clusterOf(t, map[string]http.HandlerFunc{
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": func(w http.ResponseWriter, r *http.Request) {
			if phase.Load() == 0 {
				answer(http.StatusOK, definitionsOf())(w, r)
				return
			}
			answer(http.StatusOK, definitionsOf("ciliumbgpclusterconfigs.cilium.io"))(w, r)
		},
		group + "v2/ciliumbgpclusterconfigs": not,
		group + "v2alpha1/ciliumbgpclusterconfigs": func(w http.ResponseWriter, r *http.Request) {
			if phase.Load() == 1 {
				list(w, r)
				return
			}
			not(w, r)
		},
	})
	for i := range 3 {
		phase.Store(int32(i))
		c.lists.begin(t.Context())
		all, err := ciliumBGP(t.Context(), c, ciliumClusterConfigs)
		t.Logf("phase %d: %v, nil %t, error %v", i, all, all == nil, err)
		if i == 2 && err == nil {
			t.Error("the definition is there, the list is 404, and that counts as none")
		}
	}
}
