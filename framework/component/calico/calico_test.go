package calico

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestObjects(t *testing.T) {
	manifest := string(must.Read(t, "testdata/calico.yaml"))
	apiServer := netip.MustParseAddrPort("10.50.0.11:6443")
	objects, err := Calico{PodCIDR: netip.MustParsePrefix("10.52.0.0/16"), Method: "can-reach=10.50.0.254", Poll: 5 * time.Second}.objects(manifest, apiServer)
	must.NoError(t, err)
	kinds := each.Of(objects, (*unstructured.Unstructured).GetKind)
	must.Equal(t, "objects", []string{"ConfigMap", "DaemonSet"}, kinds)
	must.Equal(t, "the API server is at", any(map[string]any{"KUBERNETES_SERVICE_HOST": "10.50.0.11", "KUBERNETES_SERVICE_PORT": "6443"}), objects[0].Object["data"])
	var set appsv1.DaemonSet
	must.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(objects[1].Object, &set))
	container := set.Spec.Template.Spec.Containers[0]
	got := map[string]string{}
	for _, e := range container.Env {
		got[e.Name] = e.Value
	}
	want := map[string]string{
		"IP": "autodetect", "NODENAME": "", "CALICO_IPV4POOL_IPIP": "Never", "CALICO_IPV4POOL_CIDR": "10.52.0.0/16",
		"IP_AUTODETECTION_METHOD": "can-reach=10.50.0.254", "AUTODETECT_POLL_INTERVAL": "5s",
	}
	must.Equal(t, "", want, got)
	must.Equal(t, "variables", len(want), len(container.Env))
	must.Equal(t, "the vendor's image is no more", Images("3.28.5")[0], container.Image)
	other := strings.ReplaceAll(manifest, "- name: calico-node", "- name: another")
	must.Fail(t, must.Err((Calico{}).objects(other, apiServer)), "no container calico-node")
}

func TestLastLook(t *testing.T) {
	const look = " stdout F 2026-11-20 16:15:46.363 [INFO][71] monitor-addresses/autodetection_methods.go 229: Including CIDR information from host interface. CIDR=\"10.50.0.21/24\"\n"
	first, second := "2026-11-20T16:15:41.350862715Z", "2026-11-20T16:15:46.36438605Z"
	for _, test := range []struct {
		name, log string
		want      string // empty: never
	}{
		{"none", "", ""},
		{"the newest", first + look + second + look, second},
		{"files in whatever order", second + look + first + look, second},
		{"startup's own look is not the monitor's", second + strings.ReplaceAll(look, "monitor-addresses/", "startup/"), ""},
		{"what else the monitor says", second + " stdout F [INFO][71] monitor-addresses/startup.go 431: Early log level set to info\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := must.Get(lastLook(test.log))(t)
			if said := got.Format(time.RFC3339Nano); got.IsZero() != (test.want == "") || test.want != "" && said != test.want {
				t.Errorf("%s, want %q", said, test.want)
			}
		})
	}
	must.Fail(t, must.Err(lastLook("yesterday"+look)))
}
