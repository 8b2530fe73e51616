package workload

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Crashed is a pod of a node whose processes were ended by Crash.
type Crashed struct {
	// Pod is the pod before the crash.
	Pod       corev1.Pod
	selection Pods
	// back is set if Pod is the one that was ready after the crash.
	back bool
}

// crash stops a pod's sandbox: containerd kills all of its processes. It is an error if the pod has none that runs.
const crash = `sandbox=$(crictl --timeout 30s pods --quiet --state ready --label "io.kubernetes.pod.uid=$1")
test -n "$sandbox"
crictl --timeout 30s stopp $sandbox`

// Crash ends the processes of the pod on a node with SIGKILL, as a reboot of the node does. Kubelet
// starts the same pod again: its init containers first, with the images of the pod's own template
// and with today's ConfigMaps and permissions. The newest template of its DaemonSet has no effect.
func (p Pods) Crash(ctx context.Context, l *kindlab.Lab, node string) (Crashed, error) {
	pod, err := p.on(ctx, l.Clusters[0], node, Started)
	if err != nil {
		return Crashed{}, err
	}
	if _, err := l.Node(node).Exec(ctx, "sh", "-ec", crash, "crash", string(pod.UID)); err != nil {
		return Crashed{}, fmt.Errorf("stopping pod %s on %s: %w", pod.Name, node, err)
	}
	return Crashed{Pod: pod, selection: p}, nil
}

// on is the pod of a node that is not being deleted, and fits.
func (p Pods) on(ctx context.Context, c *kindlab.Cluster, node string, fits func(corev1.Pod) bool) (corev1.Pod, error) {
	pods, err := p.List(ctx, c)
	for _, pod := range pods {
		if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil && fits(pod) {
			return pod, nil
		}
	}
	return corev1.Pod{}, cmp.Or(err, fmt.Errorf("%s has no pod of %s that fits", node, p))
}

// EndedError says that a pod worked and has ended since.
type EndedError struct {
	Pod, Node string
	// Containers are the containers that were started once more.
	Containers []string
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("pod %s on %s was ready, and ended once more: %s", e.Pod, e.Node, strings.Join(e.Containers, ", "))
}

// Steady returns a function that tells later whether the pod on a node still runs as it does now. It waits until the
// pod is [Ready], and ends at once with an *EndedError if one of its containers was started once more.
func (p Pods) Steady(ctx context.Context, c *kindlab.Cluster, node string) (func(context.Context, time.Duration) error, error) {
	pod, err := p.on(ctx, c, node, func(corev1.Pod) bool { return true })
	return func(ctx context.Context, bound time.Duration) error {
		_, err := Crashed{Pod: pod, selection: p, back: true}.Ready(ctx, c, bound)
		return err
	}, err
}

// Ready waits until the same pod is [Ready] again, each of its containers a new one, and returns the pod as it is then.
// The next wait is for the same containers, and ends at once with an *EndedError if one was started once more.
func (c Crashed) Ready(ctx context.Context, cluster *kindlab.Cluster, bound time.Duration) (Crashed, error) {
	var ended error
	err := await.Until(ctx, fmt.Sprintf("pod %s on %s to be ready again", c.Pod.Name, c.Pod.Spec.NodeName), 100*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			pods, err := c.selection.List(ctx, cluster)
			if err != nil {
				return false, "", err
			}
			now, again, saw := c.again(pods)
			if more := c.started(now); c.back && len(more) > 0 {
				ended = &EndedError{c.Pod.Name, c.Pod.Spec.NodeName, more}
				return true, "", nil
			}
			if again {
				c.Pod, c.back = now, true
			}
			return again, saw, nil
		})
	return c, cmp.Or(ended, err)
}

// Again reports whether the same pod is [Ready] with new containers, and what it is otherwise.
func (c Crashed) Again(ctx context.Context, cluster *kindlab.Cluster) (bool, string, error) {
	pods, err := c.selection.List(ctx, cluster)
	if err != nil {
		return false, "", err
	}
	_, again, saw := c.again(pods)
	return again, saw, nil
}

// again is the pod as it is now, empty if it is not there, and what Again reports.
func (c Crashed) again(pods []corev1.Pod) (now corev1.Pod, again bool, saw string) {
	now, there := each.First(pods, func(pod corev1.Pod) bool { return pod.UID == c.Pod.UID })
	started := c.started(now)
	old := each.Where(slices.Sorted(maps.Keys(containers(now))), func(name string) bool { return !slices.Contains(started, name) })
	switch {
	case !there:
		return now, false, "it was deleted"
	case !c.back && len(old) > 0:
		return now, false, "not started again: " + strings.Join(old, ", ")
	case !Ready(now):
		return now, false, DescribePod(now)
	}
	return now, true, ""
}

func (c Crashed) started(now corev1.Pod) []string {
	current, was := containers(now), containers(c.Pod)
	return each.Where(slices.Sorted(maps.Keys(current)), func(name string) bool { return current[name] != was[name] })
}

func containers(pod corev1.Pod) map[string]string {
	ids := map[string]string{}
	for _, s := range pod.Status.ContainerStatuses {
		ids[s.Name] = s.ContainerID
	}
	return ids
}

// Replace deletes one of the pods that run an image; its ReplicaSet makes another one of the same template. The
// function that it returns waits until as many as before are [Ready]. A second call is an *EndedError if the new pod
// was restarted.
func (p Pods) Replace(ctx context.Context, c *kindlab.Cluster, image string) (again func(context.Context, time.Duration) error, err error) {
	ready := func(ctx context.Context) (map[types.UID]corev1.Pod, error) {
		pods, err := p.List(ctx, c)
		there := map[types.UID]corev1.Pod{}
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil && Ready(pod) &&
				slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Image == image }) {
				there[pod.UID] = pod
			}
		}
		return there, err
	}
	before, err := ready(ctx)
	if err != nil {
		return nil, err
	}
	for uid, pod := range before {
		if err := c.Kube().Delete(ctx, &pod); err != nil {
			return nil, fmt.Errorf("deleting pod %s: %w", pod.Name, err)
		}
		var made Crashed // the pod in its place, once that was ready
		return func(ctx context.Context, bound time.Duration) error {
			if made.back {
				_, err := made.Ready(ctx, c, bound)
				return err
			}
			return await.Until(ctx, fmt.Sprintf("another pod of %s in place of %s", image, pod.Name), 100*time.Millisecond, bound,
				func(ctx context.Context) (bool, string, error) {
					now, err := ready(ctx)
					delete(now, uid)
					for other, pod := range now {
						if _, old := before[other]; !old {
							made = Crashed{Pod: pod, selection: p, back: len(now) >= len(before)}
						}
					}
					return err == nil && made.back, fmt.Sprintf("%d of %d are ready", len(now), len(before)), err
				})
		}, nil
	}
	return nil, fmt.Errorf("no pod of %s is ready with the image %s", p, image)
}
