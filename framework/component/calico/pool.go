package calico

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// NATOutgoing switches natOutgoing of the cluster's pool on or off: whether nodes
// hide the addresses of pods from hosts outside of Calico's pools, the nodes
// included. It is on by default. The pool is there once a calico-node has started;
// felix takes the change up on its own.
func NATOutgoing(ctx context.Context, c *kindlab.Cluster, on bool) error {
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
		"metadata": map[string]any{"name": "default-ipv4-ippool"},
	}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"natOutgoing":%t}}`, on))
	return await.Until(ctx, "Calico's pool to take natOutgoing", 200*time.Millisecond, restartsWithin,
		func(ctx context.Context) (bool, string, error) {
			err := c.Client.Resources().GetControllerRuntimeClient().Patch(ctx, pool, patch)
			return err == nil, "", err
		})
}
