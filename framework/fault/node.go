// Package fault holds the changes that start incidents, each with its undo.
package fault

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

func nodeExists(ctx context.Context, c *kindlab.Cluster, name string) (bool, error) {
	err := c.Client.Resources().Get(ctx, name, "", &corev1.Node{})
	return err == nil, client.IgnoreNotFound(err)
}

// DeleteNodeObject drains a node and deletes its Node object, as `kubectl drain` and
// `kubectl delete node` do. The machine and its processes continue to run.
//
// It has no Undo: RemoveNode's undo joins the node again.
func DeleteNodeObject(name string) framework.Fault {
	return framework.Fault{
		Name: "drain " + name + " and delete its Node object",
		Inject: func(ctx context.Context, r *framework.Run) error {
			c := labaccess.Cluster(r)
			if err := drain(ctx, c, name); err != nil {
				return err
			}
			err := c.Client.Resources().Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting node %q: %w", name, err)
			}
			return nil
		},
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			exists, err := nodeExists(ctx, labaccess.Cluster(r), name)
			return !exists, "the Node object " + name + " is there", err
		},
	}
}

// RemoveNode takes a node out of its cluster permanently: drained, its Node object deleted, its
// power cut, its disk thrown away. Undo joins a new machine of the same name and address.
func RemoveNode(name string) framework.Fault {
	object := DeleteNodeObject(name)
	removeMachine := func(ctx context.Context, r *framework.Run) error { return labaccess.Lab(r).Node(name).Remove(ctx) }
	return framework.Fault{
		Name:   "remove " + name + " from the cluster",
		Inject: framework.InOrder(object.Inject, removeMachine),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			deleted, saw, err := object.TookEffect(ctx, r)
			if !deleted || err != nil {
				return false, saw, err
			}
			runs, err := labaccess.Lab(r).Node(name).Exists(ctx)
			return !runs, "the machine " + name + " is running", err
		},
		Undo: func(ctx context.Context, r *framework.Run) error {
			c, machine := labaccess.Cluster(r), labaccess.Lab(r).Node(name)
			exists, err := nodeExists(ctx, c, name)
			if err != nil {
				return fmt.Errorf("looking for node %q: %w", name, err)
			}
			runs, err := machine.Exists(ctx)
			if err != nil {
				return err
			}
			if exists && runs {
				return nil // it was never removed
			}
			if err := machine.Remove(ctx); err != nil {
				return err
			}
			return c.ReplaceNodes(ctx, name)
		},
	}
}

// drain evicts all pods but DaemonSets' pods, which would come back.
func drain(ctx context.Context, c *kindlab.Cluster, node string) error {
	var pods corev1.PodList
	onNode := resources.WithFieldSelector("spec.nodeName=" + node)
	evictable := func(p corev1.Pod) bool {
		owner := metav1.GetControllerOf(&p)
		return owner == nil || owner.Kind != "DaemonSet"
	}
	objects := c.Client.Resources()
	if err := objects.List(ctx, &pods, onNode); err != nil {
		return fmt.Errorf("draining node %q: %w", node, err)
	}
	for _, p := range pods.Items {
		if !evictable(p) {
			continue
		}
		if err := objects.Delete(ctx, &p); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("draining node %q of pod %s/%s: %w", node, p.Namespace, p.Name, err)
		}
	}
	return await.Until(ctx, "node "+node+" to be drained", 50*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if err := objects.List(ctx, &pods, onNode); err != nil {
				return false, "", err
			}
			for _, p := range pods.Items {
				if evictable(p) {
					return false, "pod " + p.Namespace + "/" + p.Name + " is still there", nil
				}
			}
			return true, "", nil
		})
}
