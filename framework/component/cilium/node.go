package cilium

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

var ciliumNodes = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}

// operatorWithin bounds how long cilium-operator takes to register its types
// after its start, and to give a range to a CiliumNode after that.
const operatorWithin = 30 * time.Second

// CreateNode makes the CiliumNode of a node, as the node's agent would, and
// waits until cilium-operator has given it a pod range. The operator gives the
// lowest range that is free, so ranges follow the order of creation.
func CreateNode(ctx context.Context, c *kindlab.Cluster, name string, address netip.Addr) error {
	kube := c.Client.Resources().GetControllerRuntimeClient()
	// With its address from the beginning, as the agents do it: when 1.11 sees
	// an address come later, it installs the node's route and then removes the
	// one of no address, which is the same (pkg/datapath/linux/node.go,
	// updateDirectRoute).
	node := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"addresses": []any{map[string]any{"type": "InternalIP", "ip": address.String()}},
	}}}
	node.SetGroupVersionKind(ciliumNodes)
	node.SetName(name)
	// The operator registers the type when it starts.
	err := await.Until(ctx, "CiliumNode "+name+" to be created", 100*time.Millisecond, operatorWithin,
		func(ctx context.Context) (bool, string, error) {
			err := kube.Create(ctx, node.DeepCopy())
			return err == nil, "", err
		})
	if err != nil {
		return err
	}
	return await.Until(ctx, "a pod range for CiliumNode "+name, 20*time.Millisecond, operatorWithin,
		func(ctx context.Context) (bool, string, error) {
			if err := kube.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
				return false, "", err
			}
			ranges, _, err := unstructured.NestedStringSlice(node.Object, "spec", "ipam", "podCIDRs")
			return len(ranges) > 0, "spec.ipam.podCIDRs is empty", err
		})
}

// deleteNodes deletes every CiliumNode. A cluster that does not know the type
// has none.
func deleteNodes(ctx context.Context, c *kindlab.Cluster) error {
	kube := c.Client.Resources().GetControllerRuntimeClient()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(ciliumNodes.GroupVersion().WithKind("CiliumNodeList"))
	if err := kube.List(ctx, list); meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("listing CiliumNodes: %w", err)
	}
	for _, node := range list.Items {
		if err := client.IgnoreNotFound(kube.Delete(ctx, &node)); err != nil {
			return fmt.Errorf("deleting CiliumNode %q: %w", node.GetName(), err)
		}
	}
	return nil
}
