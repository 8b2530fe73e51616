package workload

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// ProbeImage is the image of probe pods.
const ProbeImage = "relapse.dev/probe:dev"

// ProbeLabel is the label that holds a probe pod's Name.
const ProbeLabel = "relapse.dev/probe"

var probes = Pods{metav1.NamespaceDefault, client.MatchingLabels{"app": "probe"}}

// socketDir is where an agent keeps its control socket, in a pod as well as on its node: the
// harness reaches it through the node's file system, never through the network under test.
const socketDir = "/run/relapse"

// OnEach are probe pods, one a node and named after it: probes between them are named after their nodes.
func OnEach(nodes ...string) []framework.ProbePod {
	return each.Of(nodes, func(node string) framework.ProbePod { return framework.ProbePod{Name: node, Node: node} })
}

// ProbeKey is the name and namespace of the pod in its cluster.
func ProbeKey(p framework.ProbePod) client.ObjectKey {
	return client.ObjectKey{Namespace: probes.Namespace, Name: "probe-" + p.Name}
}

// ProbeIP is the address of IPv4 of the pod, which runs.
func ProbeIP(ctx context.Context, c *kindlab.Cluster, p framework.ProbePod) (netip.Addr, error) {
	address, _, err := ProbeIPs(ctx, c, p)
	return address, err
}

// ProbeIPs are the addresses of the pod, which runs; v6 is invalid if it has none.
func ProbeIPs(ctx context.Context, c *kindlab.Cluster, p framework.ProbePod) (v4, v6 netip.Addr, err error) {
	var pod corev1.Pod
	if err := c.Kube().Get(ctx, ProbeKey(p), &pod); err != nil {
		return v4, v6, fmt.Errorf("reading the probe pod of %s: %w", p.Name, err)
	}
	for _, has := range pod.Status.PodIPs {
		address, err := netip.ParseAddr(has.IP)
		switch {
		case err != nil:
			return v4, v6, fmt.Errorf("the probe pod of %s has the address %q: %w", p.Name, has.IP, err)
		case address.Is4():
			v4 = address
		default:
			v6 = address
		}
	}
	if !v4.IsValid() {
		return v4, v6, fmt.Errorf("the probe pod of %s has no address of IPv4: %v", p.Name, pod.Status.PodIPs)
	}
	return v4, v6, nil
}

// ProbeSocket is the path of the agent's control socket on the pod's node.
func ProbeSocket(p framework.ProbePod) string { return socketDir + "/" + ProbeKey(p).Name + ".sock" }

// probePod is the pod of an agent, which speaks IPv6 as well if the lab is dual.
func probePod(p framework.ProbePod, dual bool) *corev1.Pod {
	args := []string{"agent", "--socket", ProbeSocket(p)}
	if dual {
		args = slices.Insert(args, 1, "--ipv6")
	}
	dns := corev1.DNSClusterFirst
	if p.HostNetwork {
		dns = corev1.DNSClusterFirstWithHostNet
	}
	key := ProbeKey(p)
	labels := map[string]string{"app": "probe", ProbeLabel: p.Name}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, Labels: labels}, Spec: corev1.PodSpec{
		NodeName:    p.Node, // without the scheduler
		HostNetwork: p.HostNetwork, DNSPolicy: dns, Hostname: p.Hostname, Subdomain: p.Subdomain,
		// A node may be unready, or removed, in the middle of a script.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		// Short, but not zero: the object must exist until the process, which owns the socket, is gone.
		TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken:  new(bool),
		EnableServiceLinks:            new(bool),
		Containers: []corev1.Container{{
			Name: "probe", Image: ProbeImage, Args: args,
			VolumeMounts: []corev1.VolumeMount{{Name: "sockets", MountPath: socketDir}},
		}},
		Volumes: []corev1.Volume{{Name: "sockets", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: socketDir, Type: new(corev1.HostPathDirectoryOrCreate)},
		}}},
	}}
}

// podsWithin bounds how long the pods of relapse take to run. They come up in seconds; but a pod that finds no CNI
// configuration is tried again only after half a minute, and a guest without hardware support is slow. Eight pods on
// one node, beside four guests that start theirs, took more than a minute on a machine with a load of 30.
const podsWithin = 4 * time.Minute

// ProbePods are the pods of one probe pod's name: one, or none.
func ProbePods(p framework.ProbePod) Pods {
	return Pods{probes.Namespace, client.MatchingLabels{"app": "probe", ProbeLabel: p.Name}}
}

// Probes is the action that runs these probe pods, in place of all existing ones, and waits until each
// runs and has an address. A node that repeatedly cannot pull the image ends the wait.
func Probes(pods ...framework.ProbePod) framework.Action {
	return framework.InOrder(StopProbes, Added(pods...))
}

// ProbesOn is Probes with one probe pod on each of these nodes.
func ProbesOn(nodes ...string) framework.Action { return Probes(OnEach(nodes...)...) }

// Added is Probes, but existing probe pods of other names stay.
func Added(pods ...framework.ProbePod) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		return addProbes(ctx, labaccess.Cluster(r), pods, r.Topology.Dual)
	}
}

func addProbes(ctx context.Context, c *kindlab.Cluster, pods []framework.ProbePod, dual bool) error {
	for _, p := range pods {
		if err := ProbePods(p).Delete(ctx, c); err != nil {
			return err
		}
		if err := c.Kube().Create(ctx, probePod(p, dual)); err != nil {
			return fmt.Errorf("creating the probe pod of %s: %w", p.Name, err)
		}
	}
	return untilPulled(ctx, "the probe pods to run", podsWithin,
		func(ctx context.Context) (bool, string, error, error) {
			var waiting []string
			var objects []corev1.Pod
			for _, p := range pods {
				var pod corev1.Pod
				if err := c.Kube().Get(ctx, ProbeKey(p), &pod); err != nil {
					return false, "", nil, err
				}
				if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
					continue
				}
				if refused(pod) {
					err := c.Kube().Delete(ctx, &pod, client.GracePeriodSeconds(0))
					if err = client.IgnoreNotFound(err); err == nil {
						err = c.Kube().Create(ctx, probePod(p, dual))
					}
					if err != nil {
						return false, "", nil, fmt.Errorf("replacing the probe pod of %s: %w", p.Name, err)
					}
				}
				objects, waiting = append(objects, pod), append(waiting, DescribePod(pod))
			}
			return len(waiting) == 0, strings.Join(waiting, "; "), PullError(objects...), nil
		})
}

// refused reports whether kubelet has refused a pod permanently because its node has no room: OutOfpods, OutOfcpu and
// so on (k8s.io/kubernetes/pkg/kubelet/lifecycle/predicate.go). A kubelet that was started a moment ago may know its
// own Node from before it has said how many pods it takes, and refuse all.
func refused(pod corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && strings.HasPrefix(pod.Status.Reason, "OutOf")
}

// StopProbes is the action that deletes the probe pods and waits until they are gone.
func StopProbes(ctx context.Context, r *framework.Run) error {
	return probes.Delete(ctx, labaccess.Cluster(r))
}
