package calico

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// NATOutgoing is the action that switches natOutgoing of the cluster's pool on or off: whether nodes
// masquerade packets from pods to addresses outside of Calico's pools, including other
// nodes. It is on by default. The pool exists once a calico-node has started; felix
// applies the change without a restart.
func NATOutgoing(on bool) framework.Action {
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
		"metadata": map[string]any{"name": "default-ipv4-ippool"},
	}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"natOutgoing":%t}}`, on))
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return await.Until(ctx, "Calico's IP pool to exist", 200*time.Millisecond, restartsWithin,
			func(ctx context.Context) (bool, string, error) {
				err := c.Kube().Patch(ctx, pool.DeepCopy(), patch)
				return err == nil, "", err
			})
	})
}
