package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/each"
)

// withAgents sets Works, Steady and Crash of a component whose agents are pods, one on each node. In an upgrade the
// DaemonSet has the newer template, and a new pod would run it. So the crash keeps the pod and kills its processes:
// kubelet starts them again with the pod's own image.
func (u Upgrade) withAgents(agents workload.Pods, image func(version string) string, works askAgent) Upgrade {
	u.Works = works
	u.Steady = func(ctx context.Context, r *framework.Run, node string) (func(context.Context) error, error) {
		steady, err := agents.Steady(ctx, labaccess.Cluster(r), node)
		return func(ctx context.Context) error { return steady(ctx, cmp.Or(u.RollWithin, rollWithin)) }, err
	}
	u.Crash = func(ctx context.Context, r *framework.Run, node, version string) (func(context.Context) error, error) {
		began := time.Now()
		crashed, err := agents.Crash(ctx, labaccess.Lab(r), node)
		if err != nil {
			return nil, err
		}
		if err := runs(crashed.Pod, image(version)); err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			var err error
			crashed, err = crashed.Ready(ctx, labaccess.Cluster(r), cmp.Or(u.RollWithin, rollWithin))
			if err != nil {
				return err
			}
			return works(ctx, r, node, version, began)
		}, nil
	}
	return u
}

// runs returns an error if no container of a pod has the agent's image. MetalLB has the same FRR in all versions.
func runs(pod corev1.Pod, image string) error {
	has := each.Of(pod.Spec.Containers, func(c corev1.Container) string { return c.Image })
	if slices.Contains(has, image) {
		return nil
	}
	return fmt.Errorf("pod %s on %s runs %s, and not %s", pod.Name, pod.Spec.NodeName, strings.Join(has, ", "), image)
}

// sessionsAndPods waits until every router has a new session with a node, and a route over the node. Then it calls
// startsPod: an agent that has only read its configuration already has sessions.
func sessionsAndPods(ctx context.Context, r *framework.Run, node, _ string, began time.Time) error {
	if err := labaccess.Lab(r).SessionsUp(ctx, []string{node}, began); err != nil {
		return err
	}
	return startsPod(ctx, r, node)
}

// restart is the Roll of a component whose agents are a DaemonSet with the strategy OnDelete.
func restart(agents workload.DaemonSet) func(ctx context.Context, r *framework.Run, node, version string) error {
	return func(ctx context.Context, r *framework.Run, node, _ string) error {
		return agents.Replace(ctx, labaccess.Cluster(r), []string{node}, rollWithin)
	}
}
