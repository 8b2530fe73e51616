package snapshot

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
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
			names := []string{"ciliumbgpclusterconfigs.cilium.io"}
			answer(http.StatusOK, definitionsOf(names[:min(1, phase.Load())]...))(w, r)
		},
		group + "v2/ciliumbgpclusterconfigs": not,
		group + "v2alpha1/ciliumbgpclusterconfigs": func(w http.ResponseWriter, r *http.Request) {
			map[bool]http.HandlerFunc{true: list, false: not}[phase.Load() == 1](w, r)
		},
	})
	for i := range 3 {
		phase.Store(int32(i))
		c.lists.begin(t.Context())
		// In the end the definition is there, and the list is 404.
		must.Equal(t, i, i == 2, must.Err(ciliumBGP(t.Context(), c, ciliumClusterConfigs)) != nil)
	}
}
