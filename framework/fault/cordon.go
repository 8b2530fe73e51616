package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Cordon marks nodes as unschedulable, as kubectl cordon does. Pods and machines are not
// touched. Undo is kubectl uncordon.
func Cordon(c *kindlab.Cluster, nodes ...string) framework.Fault {
	return framework.Fault{
		Name:   "kubectl cordon " + strings.Join(nodes, " "),
		Inject: func(ctx context.Context) error { return cordon(ctx, c, true, nodes) },
		TookEffect: func(ctx context.Context) (bool, string, error) {
			var wrong framework.Mismatches
			for _, name := range nodes {
				var node corev1.Node
				if err := c.Client.Resources().Get(ctx, name, "", &node); err != nil {
					return false, "", err
				}
				if !node.Spec.Unschedulable {
					wrong.Addf("%s is schedulable", name)
				}
			}
			return wrong.Result()
		},
		Undo: func(ctx context.Context) error { return cordon(ctx, c, false, nodes) },
	}
}

// cordon sets spec.unschedulable of nodes.
func cordon(ctx context.Context, c *kindlab.Cluster, unschedulable bool, nodes []string) error {
	var errs []error
	for _, name := range nodes {
		node := &corev1.Node{}
		node.Name = name
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable))
		if err := c.Client.Resources().GetControllerRuntimeClient().Patch(ctx, node, patch); err != nil {
			errs = append(errs, fmt.Errorf("setting spec.unschedulable of node %s to %t: %w", name, unschedulable, err))
		}
	}
	return errors.Join(errs...)
}
