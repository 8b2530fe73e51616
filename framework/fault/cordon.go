package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// Cordon marks nodes as unschedulable, as kubectl cordon does. Pods and machines are not
// touched. Undo is kubectl uncordon.
func Cordon(nodes ...string) framework.Fault {
	const patch = `{"spec":{"unschedulable":%t}}`
	return framework.Fault{
		Name:   "kubectl cordon " + strings.Join(nodes, " "),
		Inject: patched(nodes, patch, true), Undo: patched(nodes, patch, false),
		TookEffect: each(nodes, "is schedulable", func(n *corev1.Node) bool { return !n.Spec.Unschedulable }),
	}
}

// RemoveLabel removes a label from nodes. Undo gives it to them, without a value.
func RemoveLabel(label string, nodes ...string) framework.Fault {
	return framework.Fault{
		Name:   "kubectl label node " + strings.Join(nodes, " ") + " " + label + "-",
		Inject: patched(nodes, `{"metadata":{"labels":{%q:null}}}`, label), Undo: patched(nodes, `{"metadata":{"labels":{%q:""}}}`, label),
		TookEffect: each(nodes, "has the label", func(n *corev1.Node) bool { _, there := n.Labels[label]; return there }),
	}
}

// each is a condition that holds if wrong is false for each node.
func each(nodes []string, what string, wrong func(*corev1.Node) bool) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		var all framework.Mismatches
		for _, name := range nodes {
			var node corev1.Node
			if err := labaccess.Cluster(r).Client.Resources().Get(ctx, name, "", &node); err != nil {
				return false, "", err
			}
			if wrong(&node) {
				all.Addf("%s %s", name, what)
			}
		}
		return all.Result()
	}
}

// patched is the action that merges JSON into nodes.
func patched(nodes []string, format string, value any) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		var errs []error
		for _, name := range nodes {
			node := &corev1.Node{}
			node.Name = name
			patch := fmt.Appendf(nil, format, value)
			if err := labaccess.Cluster(r).Kube().Patch(ctx, node, client.RawPatch("application/merge-patch+json", patch)); err != nil {
				errs = append(errs, fmt.Errorf("merging %s into node %s: %w", patch, name, err))
			}
		}
		return errors.Join(errs...)
	}
}
