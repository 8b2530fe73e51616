package install

import (
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// Helm deletes the objects that only the earlier release has, unless their policy is keep.
func TestDropped(t *testing.T) {
	role := reference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "cilium"}
	old := reference{APIVersion: "rbac.authorization.k8s.io/v1beta1", Kind: "ClusterRole", Name: "cilium"}
	gone := reference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "kube-system", Name: "cilium-old"}
	elsewhere := gone
	elsewhere.Namespace = "default"
	secret := reference{APIVersion: "v1", Kind: "Secret", Namespace: "kube-system", Name: "cilium-ca", Kept: true}
	must.Equal(t, "", []reference{gone}, dropped([]reference{old, gone, secret}, []reference{role, elsewhere}))
}
