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
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
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
	if err := workload.Apply(ctx, r.Cluster, text.String()); err != nil {
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
				saw = workload.DescribePod(pod)
				if !old[pod.Name] && pod.Spec.Containers[0].Image == image(k.Version) && pod.Status.Phase == corev1.PodRunning {
					return true, "", nil
				}
			}
			return false, saw, nil
		})
	if err != nil {
		return err
	}
	return await.Until(ctx, "the first sync of kube-proxy in mode "+k.Mode, time.Second, 3*time.Minute,
		func(ctx context.Context) (bool, string, error) {
			l, err := k.look(ctx, r)
			// The first one ends at once: it has no Services yet.
			return err == nil && l.mode == k.Mode && l.syncs > 1, fmt.Sprintf("%d syncs in mode %q", l.syncs, l.mode), err
		})
}

// goroutines is where a kube-proxy that runs with --profiling dumps them.
const goroutines = "10249/debug/pprof/goroutine?debug=2"

// lookScript prints what a look is made of, with lines of == in between. It is
// one command of few and small processes, for each takes some tens of
// milliseconds on a guest without hardware support, and takes them from
// kube-proxy. Of several logs the newest is that of the pod that runs.
var lookScript = fmt.Sprintf(`
ask() { exec 3<>/dev/tcp/127.0.0.1/10249 && printf 'GET %%s HTTP/1.0\r\n\r\n' "$1" >&3; }
ask /proxyMode && cat <&3 && printf '\n==\n' || exit
ask /metrics && grep -e ^HTTP/ -e "^%s " <&3; printf '\n==\n'
ask '/debug/pprof/goroutine?debug=2' && cat <&3; printf '\n==\n'
for f in /var/log/pods/kube-system_kube-proxy-*/kube-proxy/*.log; do [ "$f" -nt "$log" ] && log=$f; done
grep -c "Trying to delete rs: %s" "$log"
true`, syncMetric, busyVIP)

// look looks at kube-proxy.
func (kubeProxy) look(ctx context.Context, r *framework.Run) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	text, err := r.Lab.Node(edge).Exec(ctx, "bash", "-c", lookScript)
	if err != nil {
		return look{}, err
	}
	return parseLook(text, time.Now())
}

// lookWithin bounds a look: on a busy machine one took 6 s.
const lookWithin = 30 * time.Second

// parseLook reads what lookScript printed.
func parseLook(text string, at time.Time) (look, error) {
	parts := strings.Split(text, "\n==\n")
	if len(parts) != 4 {
		return look{}, fmt.Errorf("reading what kube-proxy says: %d parts, not 4", len(parts))
	}
	for _, answer := range parts[:3] {
		// One that is missing is no look: no count of syncs is not a count of none.
		if status, _, _ := strings.Cut(answer, "\n"); !strings.HasPrefix(status, "HTTP/1.0 200 ") {
			return look{}, fmt.Errorf("asking kube-proxy: it answers %q", status)
		}
	}
	_, mode, _ := strings.Cut(parts[0], "\r\n\r\n") // after the header
	_, dump, _ := strings.Cut(parts[2], "\r\n\r\n")
	l := look{at: at, mode: mode, waiting: waitingForIPVS(dump)}
	var err error
	if l.syncs, err = finishedSyncs(parts[1]); err != nil {
		return look{}, fmt.Errorf("reading kube-proxy's metrics: %w", err)
	}
	if l.walked, err = strconv.Atoi(strings.TrimSpace(parts[3])); err != nil {
		return look{}, fmt.Errorf("counting in kube-proxy's log: %w", err)
	}
	return l, nil
}

// waitingForIPVS names the goroutines of a dump that wait for IPVS.
func waitingForIPVS(dump string) []int {
	var waiting []int
	for _, g := range snapshot.ParseGoroutines(dump) {
		if g.WaitsForIPVS() {
			waiting = append(waiting, g.ID)
		}
	}
	return waiting
}

// ask asks kube-proxy on edge for a path at a port of its loopback.
func ask(ctx context.Context, r *framework.Run, where string) (string, error) {
	return r.Lab.Node(edge).Exec(ctx, "curl", "-sS", "-m", "5", "http://127.0.0.1:"+where)
}

// healthTimeout is how old the last sync may be before healthz says 503: twice
// the iptables sync period of the manifest.
const healthTimeout = 20 * time.Second

// syncMetric counts finished syncs; it is the 1.13's name.
const syncMetric = "kubeproxy_sync_proxy_rules_latency_microseconds_count"

// finishedSyncs is how many syncs kube-proxy has finished, by its metrics.
func finishedSyncs(metrics string) (int, error) {
	for line := range strings.Lines(metrics) {
		if count, ok := strings.CutPrefix(line, syncMetric+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
			return int(n), err
		}
	}
	return 0, nil // it appears with the first sync
}
