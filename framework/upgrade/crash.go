package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// crashing returns the upgrade with the Crash of a component whose agents are pods, one on a
// node. Works waits for what an agent does besides being ready; began is before its crash.
//
// DaemonSets of an upgrade have the newer template already, and whoever deletes a pod gets
// one of that. So the pod stays, and its processes are killed: kubelet starts it again with
// its own image.
func (u Upgrade) crashing(agents func(node string) workload.Pods, works func(ctx context.Context, r *framework.Run, node, version string, began time.Time) error) Upgrade {
	u.Crash = func(ctx context.Context, r *framework.Run, node, version string) (func(context.Context) error, error) {
		began := time.Now()
		crashed, err := agents(node).Crash(ctx, labaccess.Lab(r), node)
		if err != nil {
			return nil, err
		}
		images := u.Images(version)
		if !slices.ContainsFunc(crashed.Pod.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(images, c.Image) }) {
			return nil, fmt.Errorf("pod %s on %s runs %s, which is no image of %s", crashed.Pod.Name, node, crashed.Pod.Spec.Containers[0].Image, version)
		}
		return func(ctx context.Context) error {
			if err := crashed.Ready(ctx, labaccess.Cluster(r), cmp.Or(u.RollWithin, rollWithin)); err != nil {
				return err
			}
			return works(ctx, r, node, version, began)
		}, nil
	}
	return u
}

// sessionsSince waits until every router has a new session with a node, and a route over it.
func sessionsSince(ctx context.Context, r *framework.Run, node, _ string, began time.Time) error {
	return labaccess.Lab(r).SessionsUp(ctx, []string{node}, began)
}

// all are the same pods on each node.
func all(pods workload.Pods) func(string) workload.Pods {
	return func(string) workload.Pods { return pods }
}
