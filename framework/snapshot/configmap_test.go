package snapshot

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConfigMaps(t *testing.T) {
	const path = "/api/v1/namespaces/kube-system/configmaps/"
	data := map[string]string{"masquerade": "false"}
	access := fakeAccess{api: serve(t, map[string]http.HandlerFunc{
		path + "cilium-config": protobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cilium-config"}, Data: data}),
		path + "kube-proxy":    protobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}}),
	})}
	ours, proxies, none := ConfigMaps("kube-system/cilium-config"), ConfigMaps("kube-system/kube-proxy"), ConfigMaps("kube-system/other")
	want := []ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}, {Namespace: "kube-system", Name: "kube-proxy"}}
	// Two detectors may read two ConfigMaps, or the same one.
	if got := open(t, access, proxies, ours, proxies).Collect(t.Context()).ConfigMaps; !got.Read || !cmp.Equal(got.Items, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	unavailable := open(t, access, ours, none).Collect(t.Context()).Unavailable()
	if len(unavailable) != 1 || !strings.HasPrefix(unavailable[0].String(), "ConfigMaps: reading ConfigMap kube-system/other: ") {
		t.Errorf("unavailable %q, want the ConfigMap that is not there", unavailable)
	}
}
