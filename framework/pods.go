package framework

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// ProbeImage is what a probe pod runs.
const ProbeImage = "relapse.dev/probe:dev"

const (
	// ProbeNamespace is where probe pods are.
	ProbeNamespace = metav1.NamespaceDefault
	// socketDir is where an agent keeps its control socket, in a pod as well
	// as on its node: the harness reaches it through the node's file system,
	// never through the network under test.
	socketDir = "/run/relapse"
)

// ProbePod is a pod in which a probe agent runs: the workload of an incident,
// in the role that its name tells.
type ProbePod struct {
	// Name is the end's name in probes. Services select the pod by it, as the
	// value of the label ProbeLabel.
	Name string
	Node string
	// HostNetwork puts the agent into the node's own network.
	HostNetwork bool
}

// ProbeLabel is the label that holds a probe pod's Name.
const ProbeLabel = "relapse.dev/probe"

// onEach are the probe pods that bear their nodes' names, so that probes are
// named after the nodes whose pods they connect.
func onEach(nodes []string) []ProbePod {
	var pods []ProbePod
	for _, node := range nodes {
		pods = append(pods, ProbePod{Name: node, Node: node})
	}
	return pods
}

// ObjectName is the pod's name in Kubernetes.
func (p ProbePod) ObjectName() string { return "probe-" + p.Name }

// Socket is the path of the agent's control socket on the pod's node.
func (p ProbePod) Socket() string { return socketDir + "/" + p.ObjectName() + ".sock" }

func (p ProbePod) pod() *corev1.Pod {
	hostDir := corev1.HostPathDirectoryOrCreate
	dns := corev1.DNSClusterFirst
	if p.HostNetwork {
		dns = corev1.DNSClusterFirstWithHostNet
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.ObjectName(), Namespace: ProbeNamespace,
			Labels: map[string]string{"app": "probe", ProbeLabel: p.Name},
		},
		Spec: corev1.PodSpec{
			NodeName:    p.Node, // no scheduler: the pod is this node's
			HostNetwork: p.HostNetwork,
			DNSPolicy:   dns,
			// A node may be unready, or removed, in the middle of a script.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			// Short, but not zero: the object is to be there until the process,
			// which owns the socket, is gone.
			TerminationGracePeriodSeconds: new(int64(1)),
			AutomountServiceAccountToken:  new(bool),
			EnableServiceLinks:            new(bool),
			Containers: []corev1.Container{{
				Name: "probe", Image: ProbeImage,
				Args:         []string{"agent", "--socket", p.Socket()},
				VolumeMounts: []corev1.VolumeMount{{Name: "sockets", MountPath: socketDir}},
			}},
			Volumes: []corev1.Volume{{Name: "sockets", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: socketDir, Type: &hostDir},
			}}},
		},
	}
}

// StartProbePods runs one probe pod on each of the nodes, in place of those
// that are there, and waits until each has an address. Each is named after its
// node.
func StartProbePods(ctx context.Context, c *kindlab.Cluster, nodes ...string) error {
	return StartPods(ctx, c, onEach(nodes)...)
}

// StartPods runs these probe pods, in place of those that are there, and waits
// until each has an address.
func StartPods(ctx context.Context, c *kindlab.Cluster, pods ...ProbePod) error {
	if err := StopProbePods(ctx, c); err != nil {
		return err
	}
	objects := c.Client.Resources(ProbeNamespace)
	for _, p := range pods {
		if err := objects.Create(ctx, p.pod()); err != nil {
			return fmt.Errorf("creating the probe pod of %s: %w", p.Name, err)
		}
	}
	return await.Until(ctx, "the probe pods to run", 100*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			for _, p := range pods {
				var pod corev1.Pod
				if err := objects.Get(ctx, p.ObjectName(), ProbeNamespace, &pod); err != nil {
					return false, "", err
				}
				if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
					return false, DescribePod(pod), nil
				}
			}
			return true, "", nil
		})
}

// DescribePod says why a pod does not run, as far as its status tells.
func DescribePod(pod corev1.Pod) string {
	text := fmt.Sprintf("pod %s/%s is %s", pod.Namespace, pod.Name, pod.Status.Phase)
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if w := s.State.Waiting; w != nil {
			text += fmt.Sprintf("; container %s waits: %s %s", s.Name, w.Reason, w.Message)
		}
		if t := s.State.Terminated; t != nil {
			text += fmt.Sprintf("; container %s ended with %d: %s", s.Name, t.ExitCode, t.Message)
		}
	}
	return text
}

// StopProbePods deletes the probe pods and waits until they are gone.
func StopProbePods(ctx context.Context, c *kindlab.Cluster) error {
	var pods corev1.PodList
	objects := c.Client.Resources().GetControllerRuntimeClient()
	ours := []client.ListOption{client.InNamespace(ProbeNamespace), client.MatchingLabels{"app": "probe"}}
	if err := objects.List(ctx, &pods, ours...); err != nil {
		return fmt.Errorf("listing the probe pods: %w", err)
	}
	var errs []error
	for _, pod := range pods.Items {
		if err := objects.Delete(ctx, &pod); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("deleting pod %q: %w", pod.Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return await.Until(ctx, "the old probe pods to go", 50*time.Millisecond, 30*time.Second,
		func(ctx context.Context) (bool, string, error) {
			err := objects.List(ctx, &pods, ours...)
			return err == nil && len(pods.Items) == 0, fmt.Sprintf("%d of them are there", len(pods.Items)), err
		})
}
