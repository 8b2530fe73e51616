// Package calico runs Calico on a lab's cluster, from the vendor's manifest, with BGP between the nodes and no tunnels.
package calico

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Images are the images of a version, such as 3.28.5, that the lab's registry serves.
func Images(version string) []string {
	return []string{"docker.io/calico/node:v" + version, "docker.io/calico/cni:v" + version, manifestImage(version)}
}

func manifestImage(version string) string { return "relapse.dev/calico-manifest:v" + version }

// Autodetection methods: IP_AUTODETECTION_METHOD of calico-node.
const (
	FirstFound = "first-found" // the default
	InternalIP = "kubernetes-internal-ip"
)

// agent is the name of calico-node's DaemonSet, container and label.
const agent = "calico-node"

// Agent is calico-node, with one pod on each node. It is ready if BIRD has all of its sessions.
var Agent = workload.SystemDaemonSet(agent)

// Calico is a configuration of Calico.
type Calico struct {
	Version string
	PodCIDR netip.Prefix
	// Method is how calico-node finds its node's address.
	Method string
	// Poll is AUTODETECT_POLL_INTERVAL: how often calico-node -monitor-addresses checks that address.
	Poll time.Duration
	// OnDelete replaces no pod: Roll deletes one after the other.
	OnDelete bool
}

// DefaultPoll is how often calico-node checks its address by default.
const DefaultPoll = time.Minute

// Apply is the action that brings Calico to this configuration. It replaces the pods even if nothing changed: each
// calico-node autodetects its address again. It does not wait for them.
func (c Calico) Apply(ctx context.Context, r *framework.Run) error {
	manifest, err := registry.New(labaccess.Lab(r).Registry().Addr.String()).File(ctx, manifestImage(c.Version), "/calico.yaml")
	if err != nil {
		return err
	}
	cluster := labaccess.Cluster(r)
	objects, err := c.objects(string(manifest), cluster.APIServer())
	if err != nil {
		return err
	}
	return workload.ApplyObjects(ctx, cluster, objects...)
}

func (c Calico) objects(manifest string, apiServer netip.AddrPort) ([]*unstructured.Unstructured, error) {
	objects, err := workload.Objects(manifest)
	if err != nil {
		return nil, err
	}
	// kube-controllers cleans up after deleted nodes, which no lab needs.
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetName() == "calico-kube-controllers"
	})
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			err = errors.Join(err, workload.Change(o, c.configure))
		}
	}
	// The vendor's manifest reads this ConfigMap if it exists. Calico then comes up without kube-proxy.
	endpoint := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "kubernetes-services-endpoint", "namespace": metav1.NamespaceSystem},
		"data": map[string]any{
			"KUBERNETES_SERVICE_HOST": apiServer.Addr().String(),
			"KUBERNETES_SERVICE_PORT": fmt.Sprint(apiServer.Port()),
		},
	}}
	return slices.Insert(objects, 0, endpoint), err
}

func (c Calico) configure(set *appsv1.DaemonSet) error {
	template := &set.Spec.Template
	i := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Name == agent })
	if i < 0 {
		return fmt.Errorf("no container %s in Calico's DaemonSet", agent)
	}
	container := &template.Spec.Containers[i]
	for name, value := range map[string]string{
		// BGP routes and no tunnels: kernels without ipip run it as well.
		"CALICO_IPV4POOL_IPIP":     "Never",
		"CALICO_IPV4POOL_CIDR":     c.PodCIDR.String(),
		"IP_AUTODETECTION_METHOD":  c.Method,
		"AUTODETECT_POLL_INTERVAL": c.Poll.String(),
	} {
		container.Env = slices.DeleteFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
	slices.SortStableFunc(container.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	// The lab waits for both: readiness each second instead of every ten, and all nodes at once instead of one by one.
	container.ReadinessProbe.PeriodSeconds = 1
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("100%"))}
	if c.OnDelete {
		set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, "relapse.dev/applied", time.Now().Format(time.RFC3339Nano))
	return nil
}

const (
	// installsWithin bounds the start of calico-node everywhere: three init containers and, at first, the images.
	installsWithin = 2 * time.Minute
	// restartsWithin bounds the start of pods whose images are on the node.
	restartsWithin = time.Minute
)

// canStart succeeds on a node if the CNI plugin accepts pods: it knows the node's name and the API server's address.
// install-cni writes it in brackets, which Go since 1.26 takes for IPv6 only; calico-node drops them with a new token.
const canStart = `test -s /var/lib/calico/nodename || { echo "the node's name is not written yet"; exit 1; }
grep -q '^ *server: https://[^[]' /etc/cni/net.d/calico-kubeconfig || { echo "the API server's address is not written yet"; exit 1; }`

// PodsCanStart is the action that waits until the newest calico-node runs on every node, has installed the CNI plugin
// and configured it. Until then the plugin refuses to add or remove pods, and kubelet retries only after a while.
func PodsCanStart(ctx context.Context, r *framework.Run) error {
	cluster := labaccess.Cluster(r)
	if err := Agent.Started(ctx, cluster, cluster.Nodes(), installsWithin); err != nil {
		return err
	}
	return labaccess.Lab(r).EachNode(ctx, cluster.Nodes(), func(ctx context.Context, node *kindlab.Node) error {
		return await.Until(ctx, "Calico's CNI plugin to accept pods", 200*time.Millisecond, restartsWithin,
			func(ctx context.Context) (bool, string, error) {
				said, err := node.Exec(ctx, "sh", "-c", canStart)
				return err == nil, strings.TrimSpace(said), err
			})
	})
}

// Restarted replaces calico-node's pods on nodes without a grace period, and waits until others started, ready or not.
func Restarted(nodes ...string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return Agent.Restart(ctx, c, nodes, restartsWithin, client.GracePeriodSeconds(0))
	})
}

// Peered is the action that adds a router to the BGP peers of every node.
func Peered(router string, asn uint32) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		return declare(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: router}
spec: {peerIP: "%s", asNumber: %d}
`, r.Address(router), asn))
	}
}

// Reflected is the action that ends the mesh of the nodes: a node is a route reflector, and each node has BGP
// sessions with the nodes that a selector selects.
func Reflected(reflector, selector string) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return declare(ctx, c, fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: %s, annotations: {projectcalico.org/RouteReflectorClusterID: 244.0.0.1}}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: all(), peerSelector: %s}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
`, reflector, selector))
	})
}

// declare waits until the API server knows Calico's types, which takes a moment after Apply.
func declare(ctx context.Context, c *kindlab.Cluster, manifest string) error {
	objects, err := workload.Objects(manifest)
	if err != nil {
		return err
	}
	return workload.ApplyWhenTaken(ctx, c, "Calico's types to be known", restartsWithin, objects...)
}

// NATOutgoing is the action that switches natOutgoing of the cluster's pool on or off: whether nodes masquerade
// packets from pods to addresses outside of Calico's pools, including other nodes. It is on by default. The pool
// exists once a calico-node has started; felix applies the change without a restart.
func NATOutgoing(on bool) framework.Action {
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
		"metadata": map[string]any{"name": "default-ipv4-ippool"},
	}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"natOutgoing":%t}}`, on))
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return await.Until(ctx, "Calico's IP pool to exist", 200*time.Millisecond, restartsWithin,
			func(ctx context.Context) (bool, string, error) {
				err := c.Kube().Patch(ctx, pool.DeepCopy(), patch)
				return err == nil, "", err
			})
	})
}

// Address is Calico's address of a node; invalid if it has none.
func Address(s snapshot.Snapshot, node string) netip.Addr {
	n, _ := each.First(s.Nodes.Items, func(n snapshot.Node) bool { return n.Name == node })
	return n.Calico.Address.Addr()
}

// Sessions are the BGP sessions of a node's BIRD, up or not.
func Sessions(n snapshot.NodeNetwork) []snapshot.BIRDProtocol {
	return slices.DeleteFunc(slices.Clone(n.BIRD.Items), func(p snapshot.BIRDProtocol) bool { return !p.Neighbor.IsValid() })
}

// HidesPods reports whether felix has written the rule of natOutgoing on a node.
func HidesPods(n snapshot.NodeNAT) bool {
	return slices.ContainsFunc(n.Rules.Items, func(r snapshot.Rule) bool {
		return r.Chain == "cali-nat-outgoing" && r.Target == "MASQUERADE"
	})
}

// Restarts are calico-node's pods by node, each with the number of its restarts.
func Restarts(ctx context.Context, c *kindlab.Cluster) (map[string]string, error) {
	pods, err := Agent.Pods.List(ctx, c)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			all[p.Spec.NodeName] = fmt.Sprintf("%s with %d restarts", p.Name, s.RestartCount)
		}
	}
	return all, nil
}

// IsReady reports whether calico-node's pod on a node is ready, by kubelet's status.
func IsReady(ctx context.Context, c *kindlab.Cluster, node string) (bool, error) {
	pods, err := Agent.Pods.List(ctx, c)
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && workload.Ready(p) }), err
}

func inAgent(ctx context.Context, node *kindlab.Node, command ...string) (string, error) {
	const script = `id=$(crictl ps --quiet --state running --name "^` + agent + `$")
exec crictl exec --sync "$id" "$@"`
	return node.Exec(ctx, append([]string{"sh", "-ec", script, "sh"}, command...)...)
}

// NotReady is why calico-node on a node says that it is not ready, in its own words; empty if it says that it is.
func NotReady(ctx context.Context, node *kindlab.Node) (string, error) {
	said, err := inAgent(ctx, node, "sh", "-c", "calico-node -felix-ready -bird-ready 2>&1 && echo ready || true")
	if line := notReady.FindString(said); line != "" || strings.HasSuffix(strings.TrimSpace(said), "ready") {
		return line, nil
	}
	return "", fmt.Errorf("asking calico-node on %s whether it is ready: %q: %w", node.Name(), said, err)
}

// notReady matches the line in which calico-node says why it is not ready (node/pkg/health).
var notReady = regexp.MustCompile(`calico/node is not ready: .*`)

// LastLook is when calico-node -monitor-addresses has last found the Node's InternalIP on an interface; zero for never.
func LastLook(ctx context.Context, node *kindlab.Node) (time.Time, error) {
	log, err := node.Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_"+agent+"-*/"+agent+"/*.log")
	if err != nil {
		return time.Time{}, err
	}
	return lastLook(log)
}

func lastLook(log string) (time.Time, error) {
	var last time.Time
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(line, " ")
		if !strings.Contains(text, "monitor-addresses/") || !strings.Contains(text, "Including CIDR information from host interface") {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return last, fmt.Errorf("reading %s's log: %w", agent, err)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}
