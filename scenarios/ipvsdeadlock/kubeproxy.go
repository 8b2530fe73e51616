package ipvsdeadlock

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/await"
)

//go:embed kube-proxy.yaml
var kubeProxyYAML string

var kubeProxyManifest = template.Must(template.New("kube-proxy").Parse(kubeProxyYAML))

// Modes of kube-proxy, in its own words.
const (
	ipvs     = "ipvs"
	iptables = "iptables"
)

// kubeProxy is a version and mode of kube-proxy.
type kubeProxy struct{ Version, Mode string }

func image(version string) string { return "k8s.gcr.io/kube-proxy:v" + version }

// apply brings the DaemonSet to this version and mode, in place of the pod
// that runs, and waits until kube-proxy on edge has finished its first sync.
// It returns when the process was started.
func (k kubeProxy) apply(ctx context.Context, r *framework.Run) error {
	cluster := lab.Clusters[0]
	var text strings.Builder
	err := kubeProxyManifest.Execute(&text, map[string]any{
		"Node": edge, "Image": image(k.Version), "Mode": k.Mode, "PodCIDR": podCIDR,
		"APIServer": netip.AddrPortFrom(cluster.Nodes[0].Links[0].Address, 6443),
	})
	if err != nil {
		return fmt.Errorf("rendering kube-proxy's manifest: %w", err)
	}
	if err := framework.Apply(ctx, r.Cluster, text.String()); err != nil {
		return err
	}
	return k.restart(ctx, r)
}

// restart replaces the pod that runs by one of the DaemonSet as it is now.
func (k kubeProxy) restart(ctx context.Context, r *framework.Run) error {
	objects := r.Cluster.Client.Resources().GetControllerRuntimeClient()
	ours := []client.ListOption{client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{"k8s-app": "kube-proxy"}}
	var pods corev1.PodList
	if err := objects.List(ctx, &pods, ours...); err != nil {
		return fmt.Errorf("listing the pods of kube-proxy: %w", err)
	}
	old := map[string]bool{}
	for _, pod := range pods.Items {
		old[pod.Name] = true
		if err := objects.Delete(ctx, &pod); err != nil {
			return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
		}
	}
	err := await.Until(ctx, "a new pod of kube-proxy", 200*time.Millisecond, 2*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if err := objects.List(ctx, &pods, ours...); err != nil {
				return false, "", err
			}
			saw := "there is none"
			for _, pod := range pods.Items {
				saw = framework.DescribePod(pod)
				if !old[pod.Name] && pod.Spec.Containers[0].Image == image(k.Version) && pod.Status.Phase == corev1.PodRunning {
					return true, "", nil
				}
			}
			return false, saw, nil
		})
	if err != nil {
		return err
	}
	return await.Until(ctx, "the first sync of kube-proxy in mode "+k.Mode, 2*time.Second, 3*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			mode, err := ask(ctx, r, "10249/proxyMode")
			if err != nil {
				return false, "", err
			}
			if mode != k.Mode {
				return false, fmt.Sprintf("it runs in mode %q", mode), nil
			}
			n, err := syncs(ctx, r)
			// The first one ends at once: it has no Services yet.
			return n > 1, fmt.Sprintf("%d syncs", n), err
		})
}

// ask asks kube-proxy on edge for a path at a port of its loopback.
func ask(ctx context.Context, r *framework.Run, where string) (string, error) {
	return r.Lab.Node(edge).Exec(ctx, "curl", "-sS", "-m", "5", "http://127.0.0.1:"+where)
}

// healthTimeout is how old the last sync may be before healthz says 503: twice
// the iptables sync period of the manifest.
const healthTimeout = 30 * time.Second

// syncMetric counts finished syncs; it is the 1.13's name.
const syncMetric = "kubeproxy_sync_proxy_rules_latency_microseconds_count"

// syncs is how many syncs kube-proxy has finished.
func syncs(ctx context.Context, r *framework.Run) (int, error) {
	text, err := ask(ctx, r, "10249/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if count, ok := strings.CutPrefix(line, syncMetric+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
			return int(n), err
		}
	}
	return 0, nil // it appears with the first sync
}
