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

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

var ciliumNodes = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"}

// operatorWithin bounds how long cilium-operator takes to register its types, and to give a range to a CiliumNode.
const operatorWithin = 2 * time.Minute

// CreateNodes is the action that makes the CiliumNodes of nodes, as the nodes' agents would, and waits until
// cilium-operator has given each its pod range. The operator gives the lowest free range to the node that it hears of
// first, so ranges follow the order of names.
//
// It hears of nodes in the order of creation once it has listed the nodes that were there when it began: so the first
// node's range is waited for. It writes ranges once a second (operator/cilium_node.go and pkg/ipam/allocator/podcidr in
// 1.11): so the others are created at once.
func CreateNodes(names []string, address func(r *framework.Run, name string) netip.Addr) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		c := labaccess.Cluster(r)
		for i, name := range names {
			if err := createNode(ctx, c, name, r.Topology, address(r, name)); err != nil {
				return err
			}
			if i > 0 {
				continue
			}
			if _, err := AwaitRange(ctx, c, name); err != nil {
				return err
			}
		}
		for _, name := range names {
			if _, err := AwaitRange(ctx, c, name); err != nil {
				return err
			}
		}
		return nil
	}
}

func createNode(ctx context.Context, c *kindlab.Cluster, name string, t topology.Topology, address netip.Addr) error {
	node := ciliumNode(name)
	// With its address from the beginning, as the agents do it: when 1.11 sees an address come later, it installs the
	// node's route, and then removes the same route as the old one (pkg/datapath/linux/node.go, updateDirectRoute).
	node.Object["spec"] = map[string]any{"addresses": each.Of(t.Families(), func(f topology.Family) any {
		return map[string]any{"type": "InternalIP", "ip": f.Addr(address).String()}
	})}
	// The operator registers the type when it starts.
	return await.Until(ctx, "CiliumNode "+name+" to be created", 100*time.Millisecond, operatorWithin,
		func(ctx context.Context) (bool, string, error) {
			err := c.Kube().Create(ctx, node.DeepCopy())
			return err == nil, "", err
		})
}

// Rejoin deletes the CiliumNode of a node and restarts its agent, which creates one without a range.
func Rejoin(ctx context.Context, c *kindlab.Cluster, name string) error {
	kube := c.Kube()
	before := ciliumNode(name)
	if err := kube.Get(ctx, client.ObjectKeyFromObject(before), before); err != nil {
		return fmt.Errorf("reading CiliumNode %q: %w", name, err)
	}
	if err := kube.Delete(ctx, before.DeepCopy()); err != nil {
		return fmt.Errorf("deleting CiliumNode %q: %w", name, err)
	}
	if err := agents.Restart(ctx, c, []string{name}, agentsWithin); err != nil {
		return err
	}
	return await.Until(ctx, "the agent to create CiliumNode "+name, 50*time.Millisecond, agentsWithin,
		func(ctx context.Context) (bool, string, error) {
			now := ciliumNode(name)
			err := kube.Get(ctx, client.ObjectKeyFromObject(now), now)
			return err == nil && now.GetUID() != before.GetUID(), "the one of before is there", client.IgnoreNotFound(err)
		})
}

// AwaitRange waits until cilium-operator has given a range to a CiliumNode, and returns it.
func AwaitRange(ctx context.Context, c *kindlab.Cluster, name string) (netip.Prefix, error) {
	var ranges []netip.Prefix
	err := await.Until(ctx, "a pod range for CiliumNode "+name, 20*time.Millisecond, operatorWithin,
		func(ctx context.Context) (_ bool, _ string, err error) {
			ranges, err = PodRanges(ctx, c, name)
			return len(ranges) > 0, "spec.ipam.podCIDRs is empty", err
		})
	if err != nil {
		return netip.Prefix{}, err
	}
	return ranges[0], nil
}

// OperatorError is what cilium-operator says in the status of a CiliumNode; empty if all is well.
func OperatorError(ctx context.Context, c *kindlab.Cluster, name string) (string, error) {
	node := ciliumNode(name)
	if err := c.Kube().Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
		return "", err
	}
	says, _, err := unstructured.NestedString(node.Object, "status", "ipam", "operator-status", "error")
	return says, err
}

// PodRanges are the ranges that cilium-operator has given to a node; none yet is no error.
func PodRanges(ctx context.Context, c *kindlab.Cluster, name string) ([]netip.Prefix, error) {
	node := ciliumNode(name)
	if err := c.Kube().Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
		return nil, err
	}
	texts, _, err := unstructured.NestedStringSlice(node.Object, "spec", "ipam", "podCIDRs")
	if err != nil {
		return nil, fmt.Errorf("reading CiliumNode %s: %w", name, err)
	}
	var ranges []netip.Prefix
	for _, text := range texts {
		pods, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("reading CiliumNode %s: spec.ipam.podCIDRs: %w", name, err)
		}
		ranges = append(ranges, pods)
	}
	return ranges, nil
}

func ciliumNode(name string) *unstructured.Unstructured {
	node := &unstructured.Unstructured{Object: map[string]any{}}
	node.SetGroupVersionKind(ciliumNodes)
	node.SetName(name)
	return node
}

// deleteNodes deletes every CiliumNode. A cluster that does not know the type has none.
func deleteNodes(ctx context.Context, c *kindlab.Cluster) error {
	kube := c.Kube()
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
