package snapshot

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

// The holders are those of MetalLB's statuses and of Cilium's leases, and a cluster of neither has none.
func TestL2Announcements(t *testing.T) {
	const (
		statuses = "/apis/metallb.io/v1beta1/servicel2statuses"
		leases   = "/apis/coordination.k8s.io/v1/leases"
	)
	list := func(items ...string) http.HandlerFunc {
		return answer(http.StatusOK, `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(items, ",")+`]}`)
	}
	service := func(namespace, name string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}}
	}
	status := `{"kind":"ServiceL2Status","metadata":{"name":"l2-x"},"status":{"node":"b","serviceName":"web","serviceNamespace":"default"}}`
	lease := func(name, holder string, renewed time.Duration) string {
		return fmt.Sprintf(`{"kind":"Lease","metadata":{"namespace":"kube-system","name":%q},"spec":{"holderIdentity":%q,"leaseDurationSeconds":15,"renewTime":%q}}`,
			name, holder, time.Now().Add(-renewed).UTC().Format(metav1.RFC3339Micro))
	}
	of := func(service, node, lease string) L2Announcement {
		return L2Announcement{Service: service, Node: node, Lease: lease}
	}
	for name, test := range map[string]struct {
		answers map[string]http.HandlerFunc
		want    []L2Announcement
	}{
		"neither":   {map[string]http.HandlerFunc{leases: list(lease("cilium-operator-resource-lock", "a", 0))}, nil},
		"MetalLB's": {map[string]http.HandlerFunc{statuses: list(status), leases: list()}, []L2Announcement{of("default/web", "b", "")}},
		"Cilium's": {
			map[string]http.HandlerFunc{leases: list(lease("cilium-l2announce-a-b-c", "a", 70*time.Second), lease("cilium-l2announce-default-web", "", 0))},
			[]L2Announcement{of("a-b/c", "a", "kube-system/cilium-l2announce-a-b-c")},
		},
		"one that has ended": {map[string]http.HandlerFunc{leases: list(lease("cilium-l2announce-default-web", "a", 80*time.Second))}, nil},
		"both": {
			map[string]http.HandlerFunc{statuses: list(status), leases: list(lease("cilium-l2announce-default-web", "a", 0))},
			[]L2Announcement{of("default/web", "a", "kube-system/cilium-l2announce-default-web"), of("default/web", "b", "")},
		},
	} {
		test.answers[servicesPath] = protobuf(t, &corev1.ServiceList{Items: []corev1.Service{service("default", "web"), service("a-b", "c")}})
		test.answers["/apis/apiextensions.k8s.io/v1/customresourcedefinitions"] = list()
		must.Equal(t, name, test.want, must.Get(clusterOf(t, test.answers).l2Announcements(t.Context()))(t))
	}
}
