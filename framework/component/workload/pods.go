package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Pods selects the pods of a namespace that bear all of the labels.
type Pods struct {
	Namespace string
	Labels    client.MatchingLabels
}

// List returns the pods in no particular order, including pods that are being deleted.
func (p Pods) List(ctx context.Context, c *kindlab.Cluster) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.Kube().List(ctx, &list, client.InNamespace(p.Namespace), p.Labels); err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", p, err)
	}
	return list.Items, nil
}

// Run is the condition that each of these nodes has a pod, and that the first container of every pod runs an image.
func (p Pods) Run(image string, nodes ...string) framework.Condition {
	return func(ctx context.Context, r *framework.Run) (bool, string, error) {
		pods, err := p.List(ctx, labaccess.Cluster(r))
		for _, node := range nodes {
			if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }) {
				return false, "no pod on " + node, err
			}
		}
		for _, pod := range pods {
			if got := pod.Spec.Containers[0].Image; got != image {
				return false, fmt.Sprintf("pod %s on %s is of %s", pod.Name, pod.Spec.NodeName, got), nil
			}
		}
		return len(pods) > 0, "no pod", err
	}
}

// Started waits for so many pods that are [Started]. A node that repeatedly cannot pull an image ends it ([PullError]).
func (p Pods) Started(ctx context.Context, c *kindlab.Cluster, count int, bound time.Duration) error {
	return untilPulled(ctx, fmt.Sprintf("%d pods of %s to be started", count, p), bound,
		func(ctx context.Context) (bool, string, error, error) {
			pods, err := p.List(ctx, c)
			if err != nil {
				return false, "", nil, err
			}
			started, saw := 0, ""
			for _, pod := range pods {
				if Started(pod) {
					started++
				} else {
					saw = "; " + DescribePod(pod)
				}
			}
			return started == count && len(pods) == count, fmt.Sprintf("%d of %d%s", started, len(pods), saw), PullError(pods...), nil
		})
}

// deletedWithin bounds how long deleted pods may take to go: their grace period is 30 s where they
// do not ask for another one, and a busy kubelet needs some seconds more.
const deletedWithin = time.Minute

// Delete deletes the pods and waits until they are gone. A pod whose Node is gone is not waited for: no kubelet would
// confirm that it has ended, and Kubernetes' garbage collector takes half a minute to notice.
func (p Pods) Delete(ctx context.Context, c *kindlab.Cluster) error {
	if err := c.Kube().DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(p.Namespace), p.Labels); err != nil {
		return fmt.Errorf("deleting the pods of %s: %w", p, err)
	}
	return await.Until(ctx, "the pods of "+p.String()+" to go", 50*time.Millisecond, deletedWithin,
		func(ctx context.Context) (bool, string, error) {
			left, err := p.List(ctx, c)
			if err != nil {
				return false, "", err
			}
			for _, pod := range left {
				node := client.ObjectKey{Name: pod.Spec.NodeName}
				if err := c.Kube().Get(ctx, node, &corev1.Node{}); apierrors.IsNotFound(err) {
					err = c.Kube().Delete(ctx, &pod, client.GracePeriodSeconds(0))
					if client.IgnoreNotFound(err) != nil {
						return false, "", err
					}
				}
			}
			if len(left) == 0 {
				return true, "", nil
			}
			return false, fmt.Sprintf("%d remain; %s", len(left), DescribePod(left[0])), nil
		})
}

// String is the selection as kubectl takes it: namespace/label=value.
func (p Pods) String() string { return p.Namespace + "/" + labels.FormatLabels(p.Labels) }

// Started reports whether each container of a pod was started at least once, whatever happened to it since.
func Started(pod corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers) &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.ContainerID == "" })
}

// Ready reports whether a pod serves, as its readiness probes see it, or else whether its containers run.
func Ready(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// pullReasons are kubelet's reasons for an image that it cannot pull (k8s.io/kubernetes/pkg/kubelet/images/types.go).
var pullReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// PullError says which node cannot pull which image, and why; nil if all were pulled or not requested yet.
func PullError(pods ...corev1.Pod) error {
	for _, pod := range pods {
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if w := s.State.Waiting; w != nil && slices.Contains(pullReasons, w.Reason) {
				return fmt.Errorf("node %s cannot pull %s for container %s: %s: %s", pod.Spec.NodeName, s.Image, s.Name, w.Reason, w.Message)
			}
		}
	}
	return nil
}

// pullRetried is longer than the first two pauses of a kubelet between its attempts to pull an
// image, 10 and 20 s: what fails for so long does not fail because a registry was slow once.
const pullRetried = 35 * time.Second

// untilPulled waits as await.Until does, every 100 ms, for a condition that also returns the
// PullError of its pods. If that was an error in every poll of pullRetried, the wait ends with it.
func untilPulled(ctx context.Context, what string, bound time.Duration,
	holds func(context.Context) (ok bool, saw string, pulling, err error)) error {
	var hopeless error
	var since time.Time // when the image could not be pulled first
	err := await.Until(ctx, what, 100*time.Millisecond, bound, func(ctx context.Context) (bool, string, error) {
		ok, saw, pulling, err := holds(ctx)
		switch {
		case pulling == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= pullRetried:
			hopeless = pulling
		}
		return ok || hopeless != nil, saw, err
	})
	return errors.Join(err, hopeless)
}

// DescribePod says why a pod does not run, as far as its status says.
func DescribePod(pod corev1.Pod) string {
	text := fmt.Sprintf("pod %s/%s is %s", pod.Namespace, pod.Name, pod.Status.Phase)
	if pod.DeletionTimestamp != nil {
		text += " and being deleted"
	}
	if pod.Status.Reason != "" {
		text += fmt.Sprintf(": %s: %s", pod.Status.Reason, pod.Status.Message)
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		// A container that waits for an init container, and one of these that is done, say nothing of why.
		if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			text += fmt.Sprintf("; container %s waits: %s %s", s.Name, w.Reason, w.Message)
			if t := s.LastTerminationState.Terminated; t != nil {
				text += fmt.Sprintf("; it ended with %d: %s", t.ExitCode, lastLine(t.Message))
			}
		}
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			text += fmt.Sprintf("; container %s ended with %d: %s", s.Name, t.ExitCode, lastLine(t.Message))
		}
	}
	return text
}

// lastWords is the line of an ended container's log that says why it ended: the last line, or the error before the
// usage that programs print for wrong flags (github.com/spf13/cobra).
func lastWords(log string) string {
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "Error: ") {
			return strings.TrimSpace(line)
		}
	}
	return lastLine(log)
}

// lastLine is the last line of a container's message, which may be the end of its log (FallbackToLogsOnError).
func lastLine(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	return lines[len(lines)-1]
}

// Log is the log of a pod's first container: of the one that runs, or else of the one that ended last.
func Log(ctx context.Context, c *kindlab.Cluster, pod corev1.Pod) (string, error) {
	return readLog(ctx, c, pod, corev1.PodLogOptions{Previous: endedLast(pod)})
}

// Starts are the logs of the newest starts of a pod's first container, the newest one last, each line with the
// container runtime's time. There are two only while a restarted container runs and until kubelet has noticed its end.
func Starts(ctx context.Context, c *kindlab.Cluster, pod corev1.Pod) ([]string, error) {
	newest, err := readLog(ctx, c, pod, corev1.PodLogOptions{Previous: endedLast(pod), Timestamps: true})
	if err != nil {
		return nil, err
	}
	s := firstStatus(pod)
	if s.State.Waiting != nil || s.LastTerminationState.Terminated == nil {
		return []string{newest}, nil
	}
	before, err := readLog(ctx, c, pod, corev1.PodLogOptions{Previous: true, Timestamps: true})
	if apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) { // it was removed since
		return []string{newest}, nil
	}
	return []string{before, newest}, err
}

func firstStatus(pod corev1.Pod) corev1.ContainerStatus {
	first, _ := each.First(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == pod.Spec.Containers[0].Name })
	return first
}

// Running reports whether a pod's first container runs, as kubelet has last seen it.
func Running(pod corev1.Pod) bool { return firstStatus(pod).State.Running != nil }

// Ends says that a container of one of the pods ends by itself each time that kubelet starts it, and how, with the
// line of its log that says why; empty if none does. One that was killed, as for its memory, does not end by itself.
func Ends(ctx context.Context, c *kindlab.Cluster, pods Pods) (string, error) {
	all, err := pods.List(ctx, c)
	if err != nil {
		return "", err
	}
	for _, pod := range all {
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if !endsByItself(s) {
				continue
			}
			log, err := readLog(ctx, c, pod, corev1.PodLogOptions{Container: s.Name, Previous: true})
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s on %s ended %d times, with status %d: %s", s.Name, pod.Spec.NodeName, s.RestartCount+1,
				s.LastTerminationState.Terminated.ExitCode, lastWords(log)), nil
		}
	}
	return "", nil
}

// endsByItself reports whether a container has ended twice at least, the last time with a
// status of its own: kubelet waits before it starts it again. 128 and more are signals.
func endsByItself(s corev1.ContainerStatus) bool {
	w, t := s.State.Waiting, s.LastTerminationState.Terminated
	return w != nil && w.Reason == "CrashLoopBackOff" && s.RestartCount > 0 &&
		t != nil && t.Reason == "Error" && t.ExitCode > 0 && t.ExitCode < 128
}

// endedLast reports whether the newest start of a pod's first container has ended, and the next one is waited for.
func endedLast(pod corev1.Pod) bool {
	s := firstStatus(pod)
	return s.State.Waiting != nil && s.LastTerminationState.Terminated != nil
}

func readLog(ctx context.Context, c *kindlab.Cluster, pod corev1.Pod, options corev1.PodLogOptions) (string, error) {
	// klient does not read logs.
	client, err := kubernetes.NewForConfig(c.Client.RESTConfig())
	if err != nil {
		return "", fmt.Errorf("making a client for the log of %s: %w", pod.Name, err)
	}
	options.Container = cmp.Or(options.Container, pod.Spec.Containers[0].Name)
	log, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &options).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the log of %s: %w", pod.Name, err)
	}
	return string(log), nil
}
