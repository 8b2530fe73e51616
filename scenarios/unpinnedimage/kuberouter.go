package unpinnedimage

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/registry"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// Names of the vendor's image.
const (
	untagged = "docker.io/cloudnativelabs/kube-router"
	older    = untagged + ":v" + oldVersion
	newer    = untagged + ":v" + newVersion
)

// Times that kube-router is given; see the record. As with its defaults, a
// kube-router that waits for its caches in vain ends before its routes go.
const (
	// restartTime outlasts the restart of a kube-router that comes back: some
	// 3 s for the pod, and 5 to 9 s until its GoBGP dials the ToR.
	restartTime      = 18 * time.Second
	cacheSyncTimeout = 12 * time.Second
)

//go:embed kube-router.yaml
var manifestYAML string

var manifestTemplate = template.Must(template.New("kube-router").Parse(manifestYAML))

// kubeRouter is a configuration of kube-router, as the manifest takes it.
type kubeRouter struct {
	Image      string
	PullPolicy corev1.PullPolicy
	// IBGP is the argument that the operator changes.
	IBGP bool
	// V2 asks for the manifest of v2.1.0 in place of that of v1.5.1.
	V2 bool
	// V0 asks for that of v0.4.0.
	V0 bool
	// AtOnce replaces the pods of all nodes at once and not one after the
	// other: nobody rolls gently where nothing works any more.
	AtOnce bool
}

// manifest fills in what the lab knows.
func (k kubeRouter) manifest() (string, error) {
	var text strings.Builder
	err := manifestTemplate.Execute(&text, struct {
		kubeRouter
		ClusterASN, RouterASN         uint32
		Router                        netip.Addr
		RestartTime, CacheSyncTimeout time.Duration
		APIServer                     netip.AddrPort
	}{k, clusterASN, torASN, torAddress, restartTime, cacheSyncTimeout,
		netip.AddrPortFrom(lab.Clusters[0].Nodes[0].Links[0].Address, 6443)})
	if err != nil {
		return "", fmt.Errorf("rendering kube-router's manifest: %w", err)
	}
	return text.String(), nil
}

// apply brings the cluster to this configuration, and waits until each node
// runs a pod of it. Whether that pod does its work is another question.
func (k kubeRouter) apply(ctx context.Context, r *framework.Run) error {
	text, err := k.manifest()
	if err != nil {
		return err
	}
	if err := workload.Apply(ctx, r.Cluster, text); err != nil {
		return err
	}
	return rolledOut(ctx, r)
}

// rolledOut waits until the DaemonSet's controller has replaced every pod. A
// node that cannot pull the image ends the wait.
func rolledOut(ctx context.Context, r *framework.Run) error {
	var pulling error
	err := await.Until(ctx, "kube-router's rollout", 100*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			pods, err := routerPods(ctx, r)
			if err != nil {
				return false, "", err
			}
			if pulling = pullError(pods); pulling != nil {
				return true, "", nil
			}
			var set appsv1.DaemonSet
			if err := r.Cluster.Client.Resources().Get(ctx, "kube-router", metav1.NamespaceSystem, &set); err != nil {
				return false, "", err
			}
			s := set.Status
			started := 0
			for _, p := range pods {
				if p.DeletionTimestamp == nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].ContainerID != "" {
					started++
				}
			}
			done := s.ObservedGeneration >= set.Generation && int(s.UpdatedNumberScheduled) == len(all) && len(pods) == len(all) && started == len(all)
			return done, fmt.Sprintf("%d of %d updated, %d pods, %d started", s.UpdatedNumberScheduled, len(all), len(pods), started), nil
		})
	return errors.Join(err, pulling)
}

// rangesWritten waits until kube-router has written each node's pod range into
// the CNI configuration: without it no pod gets an address.
func rangesWritten(ctx context.Context, r *framework.Run) error {
	for _, name := range all {
		err := await.Until(ctx, "kube-router's CNI configuration on "+name, 100*time.Millisecond, 30*time.Second,
			func(ctx context.Context) (bool, string, error) {
				text, err := r.Lab.Node(name).Exec(ctx, "cat", "/etc/cni/net.d/10-kuberouter.conflist")
				return strings.Contains(text, `"subnet"`), strings.TrimSpace(text), err
			})
		if err != nil {
			return err
		}
	}
	return nil
}

func routerPods(ctx context.Context, r *framework.Run) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.Cluster.Client.Resources(metav1.NamespaceSystem).List(ctx, &pods, resources.WithLabelSelector("k8s-app=kube-router"))
	if err != nil {
		return nil, fmt.Errorf("listing kube-router's pods: %w", err)
	}
	return pods.Items, nil
}

// deleteRouterPod deletes kube-router's pod of a node, and leaves it no time.
func deleteRouterPod(ctx context.Context, r *framework.Run, node string) error {
	pods, err := routerPods(ctx, r)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName != node {
			continue
		}
		err := r.Cluster.Client.Resources(p.Namespace).Delete(ctx, &p, resources.WithGracePeriod(0))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting kube-router's pod on %s: %w", node, err)
		}
	}
	return nil
}

// pullReasons are the kubelet's words for an image that it cannot get
// (k8s.io/kubernetes/pkg/kubelet/images/types.go).
var pullReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// pullError says which node cannot get which image, in the node's own words.
func pullError(pods []corev1.Pod) error {
	for _, p := range pods {
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := s.State.Waiting; w != nil && slices.Contains(pullReasons, w.Reason) {
				return fmt.Errorf("node %s cannot pull %s for container %s: %s: %s", p.Spec.NodeName, s.Image, s.Name, w.Reason, w.Message)
			}
		}
	}
	return nil
}

// decided waits until the ToR knows what became of each node: there is a
// session, or the time for a restart is over and the node's routes are gone.
func decided(ctx context.Context, r *framework.Run) error {
	tor, err := r.Lab.Router("tor")
	if err != nil {
		return err
	}
	err = await.Until(ctx, "the ToR's view of every node", 100*time.Millisecond, restartTime+30*time.Second,
		func(ctx context.Context) (bool, string, error) {
			neighbors, err := tor.Neighbors(ctx)
			if err != nil {
				return false, "", err
			}
			paths, err := tor.RIB(ctx)
			if err != nil {
				return false, "", err
			}
			waiting := undecided(neighbors, paths)
			return len(waiting) == 0, "kept while they restart: the routes of " + strings.Join(waiting, ", "), nil
		})
	return errors.Join(err, tor.Close())
}

// undecided names the nodes that have paths and no session.
func undecided(neighbors []router.Neighbor, paths []router.Path) []string {
	var waiting []string
	for _, name := range all {
		addr, _ := lab.AddressOn(name, "nodes")
		up := slices.ContainsFunc(neighbors, func(n router.Neighbor) bool {
			return n.Address == addr && n.State == router.StateEstablished
		})
		has := slices.ContainsFunc(paths, func(p router.Path) bool { return p.Neighbor == addr })
		if has && !up {
			waiting = append(waiting, name)
		}
	}
	return waiting
}

// announced waits until the ToR has a session with each of the nodes, and a
// path from it: one without session may be what an earlier life has left.
func announced(ctx context.Context, r *framework.Run) error {
	tor, err := r.Lab.Router("tor")
	if err != nil {
		return err
	}
	err = await.Until(ctx, "the nodes' routes on the ToR", 100*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			neighbors, err := tor.Neighbors(ctx)
			if err != nil {
				return false, "", err
			}
			missing := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
				addr, _ := lab.AddressOn(name, "nodes")
				return slices.ContainsFunc(neighbors, func(n router.Neighbor) bool {
					return n.Address == addr && n.State == router.StateEstablished && n.Received > 0
				})
			})
			return len(missing) == 0, "no session, or no route over it: " + strings.Join(missing, ", "), nil
		})
	return errors.Join(err, tor.Close())
}

// clearNodes has the ToR forget the nodes, and what it keeps for them while
// they restart.
func clearNodes(ctx context.Context, r *framework.Run) error {
	tor, err := r.Lab.Router("tor")
	if err != nil {
		return err
	}
	for _, name := range all {
		addr, _ := lab.AddressOn(name, "nodes")
		err = errors.Join(err, tor.Clear(ctx, addr))
	}
	return errors.Join(err, tor.Close())
}

// resolve returns the digest that a name stands for in the lab's registry.
func resolve(ctx context.Context, r *framework.Run, image string) (string, error) {
	c := registry.New(r.Lab.Registry().Addr.String())
	digest, err := c.Resolve(ctx, image)
	return digest, errors.Join(err, c.Close())
}

// moveLatest makes the name without tag stand for a version.
func moveLatest(ctx context.Context, r *framework.Run, version string) error {
	c := registry.New(r.Lab.Registry().Addr.String())
	_, err := c.Move(ctx, untagged, version)
	return errors.Join(err, c.Close())
}

// pinned returns the name of a version by digest.
func pinned(ctx context.Context, r *framework.Run, version string) (string, error) {
	digest, err := resolve(ctx, r, version)
	return untagged + "@" + digest, err
}

// uninstall removes kube-router and the probe pods, and does to the nodes
// what a new machine would be like: no CNI configuration, no bridge, no rules,
// and none of kube-router's images.
func uninstall(ctx context.Context, r *framework.Run) error {
	var side errgroup.Group
	side.Go(func() error { return workload.SystemDaemonSet("kube-router").Delete(ctx, r.Cluster) })
	side.Go(func() error { return workload.StopProbes(ctx, r.Cluster) })
	side.Go(func() error { return unguard(ctx, r) })
	if err := side.Wait(); err != nil {
		return err
	}
	for _, name := range all {
		side.Go(func() error {
			_, err := r.Lab.Node(name).Exec(ctx, "sh", "-c", cleanNode)
			return err
		})
	}
	return side.Wait()
}

// flushFilter empties the filter table, and that of kube-routers which speak to
// the kernel in the older way.
const flushFilter = `iptables -F; iptables -X
if iptables-legacy-save | grep -q KUBE-; then iptables-legacy -F; iptables-legacy -X; fi`

// cleanNode ends well on a node that is clean.
const cleanNode = `set -e
rm -rf /etc/cni/net.d/10-kuberouter.conflist /var/lib/cni/networks
ip link del kube-bridge 2>/dev/null || true
while ip rule del table 77 2>/dev/null; do :; done
` + flushFilter + `
iptables-save -t nat | grep -v kube-router | iptables-restore -T nat
crictl --timeout 30s images -q ` + untagged + ` | sort -u | xargs -r crictl --timeout 30s rmi >/dev/null`
