package snapshot

import (
	"context"
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
	cluster, err := NewCluster(serve(t, map[string]http.HandlerFunc{
		path + "cilium-config": protobuf(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cilium-config"}, Data: data}),
	}))
	if err != nil {
		t.Fatal(err)
	}
	c := Collector{Kubernetes: cluster, ConfigMaps: cluster.ConfigMaps("kube-system/cilium-config")}
	want := []ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: data}}
	if got := c.Collect(t.Context()).ConfigMaps; !got.Read || !cmp.Equal(got.Items, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	_, err = cluster.ConfigMaps("kube-system/other")(context.Background())
	if err == nil || !strings.Contains(err.Error(), "kube-system/other") {
		t.Errorf("error %v does not name the ConfigMap", err)
	}
}
