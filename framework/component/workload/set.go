package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// DaemonSet names a DaemonSet and its pods, which are in its namespace. It need not be in the cluster yet.
type DaemonSet struct {
	Name string
	Pods Pods
}

// SystemDaemonSet is a DaemonSet in kube-system with its name as label k8s-app, as vendors deploy network components.
func SystemDaemonSet(name string) DaemonSet {
	return DaemonSet{name, Pods{metav1.NamespaceSystem, client.MatchingLabels{"k8s-app": name}}}
}

// Started waits until each of the nodes runs exactly one pod, of the DaemonSet's newest template, that is [Started],
// ready or not. A node that repeatedly cannot pull an image ends the wait with its own error ([PullError]).
func (d DaemonSet) Started(ctx context.Context, c *kindlab.Cluster, nodes []string, bound time.Duration) error {
	return d.wait(ctx, c, "to be started", nodes, bound, Started)
}

// Ready waits as Started does, but until each of the pods is [Ready].
func (d DaemonSet) Ready(ctx context.Context, c *kindlab.Cluster, nodes []string, bound time.Duration) error {
	return d.wait(ctx, c, "to be ready", nodes, bound, Ready)
}

// Everywhere is the action that waits for Ready on every node of the cluster.
func (d DaemonSet) Everywhere(bound time.Duration) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return d.Ready(ctx, c, c.Nodes(), bound) })
}

// Replace is Restart, and waits until each successor is [Ready].
func (d DaemonSet) Replace(ctx context.Context, c *kindlab.Cluster, nodes []string, bound time.Duration) error {
	if err := d.Restart(ctx, c, nodes, bound); err != nil {
		return err
	}
	return d.Ready(ctx, c, nodes, bound)
}

// Restart deletes the pods on these nodes and waits until each of them has a successor that is [Started].
func (d DaemonSet) Restart(ctx context.Context, c *kindlab.Cluster, nodes []string, bound time.Duration,
	options ...client.DeleteOption) error {
	// A controller that has not seen the newest template would make a pod of the old one, and leave it with OnDelete.
	if err := d.observed(ctx, c, bound); err != nil {
		return err
	}
	pods, err := d.Pods.List(ctx, c)
	if err != nil {
		return err
	}
	old := map[types.UID]bool{}
	for _, pod := range pods {
		if !slices.Contains(nodes, pod.Spec.NodeName) {
			continue
		}
		old[pod.UID] = true
		if err := client.IgnoreNotFound(c.Kube().Delete(ctx, &pod, options...)); err != nil {
			return fmt.Errorf("deleting pod %s of %s: %w", pod.Name, pod.Spec.NodeName, err)
		}
	}
	return d.wait(ctx, c, "to be restarted", nodes, bound, func(pod corev1.Pod) bool { return !old[pod.UID] && Started(pod) })
}

func (d DaemonSet) observed(ctx context.Context, c *kindlab.Cluster, bound time.Duration) error {
	return await.Until(ctx, "the controller to know the newest "+d.Name, 50*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			var set appsv1.DaemonSet
			if err := c.Kube().Get(ctx, client.ObjectKey{Namespace: d.Pods.Namespace, Name: d.Name}, &set); err != nil {
				return false, "", err
			}
			return set.Status.ObservedGeneration >= set.Generation, fmt.Sprintf("it knows generation %d of %d", set.Status.ObservedGeneration,
				set.Generation), nil
		})
}

// Delete deletes the DaemonSet and its pods, and waits until they are gone. One that is not there is no error.
func (d DaemonSet) Delete(ctx context.Context, c *kindlab.Cluster) error {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Pods.Namespace}}
	return deleteWithPods(ctx, c, set, d.Pods)
}

func (d DaemonSet) wait(ctx context.Context, c *kindlab.Cluster, what string, nodes []string, bound time.Duration,
	holds func(corev1.Pod) bool) error {
	return untilPulled(ctx, fmt.Sprintf("%s %s on %s", d.Name, what, strings.Join(nodes, ", ")), bound,
		func(ctx context.Context) (bool, string, error, error) {
			var set appsv1.DaemonSet
			if err := c.Kube().Get(ctx, client.ObjectKey{Namespace: d.Pods.Namespace, Name: d.Name}, &set); err != nil {
				return false, "", nil, err
			}
			pods, err := d.Pods.List(ctx, c)
			if err != nil {
				return false, "", nil, err
			}
			missing, pulling := rollout(set, pods, nodes, holds)
			return len(missing) == 0, strings.Join(missing, "; "), pulling, nil
		})
}

// generationLabel is where the DaemonSet controller writes the generation of the template that a pod is made from. The
// API server counts it in the annotation appsv1.DeprecatedTemplateGeneration. apps/v1 has both.
const generationLabel = "pod-template-generation"

// rollout says, for each node on which a DaemonSet's pod is not as expected, what state it
// is in. A pod of the newest template that cannot pull its image is an error.
func rollout(set appsv1.DaemonSet, pods []corev1.Pod, nodes []string, holds func(corev1.Pod) bool) (missing []string, pulling error) {
	newest := set.Annotations[appsv1.DeprecatedTemplateGeneration]
	for _, node := range nodes {
		here := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Spec.NodeName != node })
		switch {
		case len(here) == 0:
			missing = append(missing, node+" has no pod")
		case len(here) > 1:
			missing = append(missing, fmt.Sprintf("%s has %d pods", node, len(here)))
		case here[0].Labels[generationLabel] != newest:
			missing = append(missing, node+" has a pod of an older template")
		case here[0].DeletionTimestamp != nil || !holds(here[0]):
			pulling = errors.Join(pulling, PullError(here[0]))
			missing = append(missing, node+": "+DescribePod(here[0]))
		}
	}
	return missing, pulling
}

// Deployment names a Deployment and its pods, which are in its namespace. It need not be in the cluster yet.
type Deployment struct {
	Name string
	Pods Pods
}

// Ready waits until the Deployment has the configured number of pods, all of its newest template, and each is
// [Ready]. A node that repeatedly cannot pull an image ends the wait with its own error ([PullError]).
func (d Deployment) Ready(ctx context.Context, c *kindlab.Cluster, bound time.Duration) error {
	return untilPulled(ctx, d.Name+" to be ready", bound,
		func(ctx context.Context) (_ bool, saw string, pulling, _ error) {
			var set appsv1.Deployment
			if err := c.Kube().Get(ctx, client.ObjectKey{Namespace: d.Pods.Namespace, Name: d.Name}, &set); err != nil {
				return false, "", nil, err
			}
			wanted := *set.Spec.Replicas
			if s := set.Status; s.ObservedGeneration < set.Generation || s.UpdatedReplicas != wanted || s.Replicas != wanted {
				return false, fmt.Sprintf("%d of %d pods are of the newest template, %d in all", s.UpdatedReplicas, wanted, s.Replicas), nil, nil
			}
			pods, err := d.Pods.List(ctx, c)
			if err != nil {
				return false, "", nil, err
			}
			ready, saw := 0, "no pod"
			for _, pod := range pods {
				switch {
				case pod.DeletionTimestamp != nil:
				case Ready(pod):
					ready++
				default:
					saw, pulling = DescribePod(pod), errors.Join(pulling, PullError(pod))
				}
			}
			return ready == int(wanted), fmt.Sprintf("%d of %d ready; %s", ready, wanted, saw), pulling, nil
		})
}

// Delete deletes the Deployment and its pods, and waits until they are gone. One that is not there is no error.
func (d Deployment) Delete(ctx context.Context, c *kindlab.Cluster) error {
	set := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Pods.Namespace}}
	return deleteWithPods(ctx, c, set, d.Pods)
}

// deleteWithPods does not leave the pods to Kubernetes' garbage collectors, which take half a minute to notice
// objects in a cluster whose types have just changed, and as long to give up the pods of a node that is gone.
func deleteWithPods(ctx context.Context, c *kindlab.Cluster, set client.Object, pods Pods) error {
	err := client.IgnoreNotFound(c.Kube().Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	if err == nil { // a ReplicaSet that outlives its Deployment would make new pods
		err = c.Kube().DeleteAllOf(ctx, &appsv1.ReplicaSet{}, client.InNamespace(pods.Namespace), pods.Labels)
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", set.GetName(), err)
	}
	return pods.Delete(ctx, c)
}
