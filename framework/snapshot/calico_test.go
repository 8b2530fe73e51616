package snapshot

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestNodeAnnotations(t *testing.T) {
	for _, c := range []struct {
		name        string
		annotations map[string]string
		want        Node
		err         string
	}{
		{name: "none"},
		{name: "Calico", annotations: map[string]string{
			"projectcalico.org/IPv4Address": "172.29.0.11/24", "projectcalico.org/RouteReflectorClusterID": "244.0.0.1",
		}, want: Node{Calico: CalicoNode{Address: netip.MustParsePrefix("172.29.0.11/24"), RouteReflector: "244.0.0.1"}}},
		{name: "Calico, without a subnet", annotations: map[string]string{"projectcalico.org/IPv4Address": "172.29.0.11"},
			want: Node{Calico: CalicoNode{Address: netip.MustParsePrefix("172.29.0.11/32")}}},
		{name: "kube-router", annotations: map[string]string{"kube-router.io/bgp-local-addresses": "172.29.0.11, 172.30.0.11"},
			want: Node{KubeRouterAddresses: []netip.Addr{netip.MustParseAddr("172.29.0.11"), netip.MustParseAddr("172.30.0.11")}}},
		{name: "a bad address", annotations: map[string]string{"projectcalico.org/IPv4Address": "here"}, err: "projectcalico.org/IPv4Address: ParseAddr"},
		{name: "a bad list", annotations: map[string]string{"kube-router.io/bgp-local-addresses": "172.29.0.11,"}, err: "kube-router.io/bgp-local-addresses: ParseAddr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := nodeList.DeepCopy()
			list.Items = list.Items[:1]
			list.Items[0].Annotations = c.annotations
			nodes, err := listedNodes.items(t.Context(), clusterOf(t, map[string]http.HandlerFunc{nodesPath: protobuf(t, list)}))
			if c.err != "" {
				must.Fail(t, err, `node "master2": annotation `+c.err)
				return
			}
			must.NoError(t, err)
			must.Equal(t, "", c.want, Node{Calico: nodes[0].Calico, KubeRouterAddresses: nodes[0].KubeRouterAddresses})
		})
	}
}

func calicoPod(name, node string, env ...corev1.EnvVar) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "calico-node"}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{
			{Name: "sidecar", Env: []corev1.EnvVar{{Name: "IP", Value: "none"}}},
			{Name: "calico-node", Env: env},
		}},
	}
}

func TestCalicoAgents(t *testing.T) {
	leaving := calicoPod("calico-node-old", "node1", corev1.EnvVar{Name: "IP", Value: "autodetect"})
	leaving.DeletionTimestamp = &metav1.Time{Time: created}
	other := calicoPod("another-program", "node1")
	other.Labels["k8s-app"] = "another"
	list := &corev1.PodList{Items: []corev1.Pod{
		calicoPod("calico-node-b", "node2",
			corev1.EnvVar{Name: "IP", Value: "autodetect"}, corev1.EnvVar{Name: "IP_AUTODETECTION_METHOD", Value: "kubernetes-internal-ip"},
			corev1.EnvVar{Name: "AUTODETECT_POLL_INTERVAL", Value: "2s"}, corev1.EnvVar{Name: "FELIX_HEALTHENABLED", Value: "true"}),
		calicoPod("calico-node-a", "node1",
			corev1.EnvVar{Name: "AUTODETECT_POLL_INTERVAL", Value: "often"},
			corev1.EnvVar{Name: "IP_AUTODETECTION_METHOD", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "method"}}}),
		leaving,
		calicoPod("calico-node-pending", ""),
		other,
	}}
	asked := ""
	cluster := clusterOf(t, map[string]http.HandlerFunc{podsPath: func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("fieldSelector")
		protobuf(t, list)(w, r)
	}})
	must.Equal(t, "", []CalicoAgent{
		{Node: "node1", Pod: "kube-system/calico-node-a", Poll: time.Minute, Unknown: []string{"IP_AUTODETECTION_METHOD"}},
		{Node: "node2", Pod: "kube-system/calico-node-b", IP: "autodetect", Method: "kubernetes-internal-ip", Poll: 2 * time.Second},
	}, must.Get(cluster.calicoAgents(t.Context()))(t))
	must.Equal(t, "asked for", notEnded, asked)
}
