//go:build lab && night

//lint:file-ignore SA1019 kube-proxy 1.13 reads Endpoints and nothing else

package kindlab_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// Under TCG a guest's memory grows for minutes, for which -load=5m waits: what it
// executes is translated, and the translation kept.
var loadFor = flag.Duration("load", 30*time.Second, "how long a guest is kept under kube-proxy's load")

// kubeProxy is the release with the IPVS deadlock; what it takes of a node, the others take too.
const kubeProxy = "k8s.gcr.io/kube-proxy:v1.13.0"

// TestGuestUnderLoad keeps a guest under kube-proxy in IPVS mode, which the
// machine's own kernel may lack, with 300 real servers of which 50 change
// without pause. The guest must stay, and stay within its memory.
func TestGuestUnderLoad(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), *loadFor+12*time.Minute)
	defer cancel()
	lab, docker := upWithGuest(ctx, t, withGuest(), kubeProxy)
	node := lab.Node("second")
	objects := lab.Clusters[0].Client.Resources()
	defer func() {
		if t.Failed() {
			logs, err := lab.Logs(context.Background(), time.Time{})
			t.Logf("logs: %v", err)
			for name, text := range logs {
				if strings.HasPrefix(name, "second-") {
					lines := strings.Split(strings.TrimSpace(text), "\n")
					t.Logf("%s:\n%s", name, strings.Join(lines[max(0, len(lines)-12):], "\n"))
				}
			}
		}
	}()

	startKubeProxy(ctx, t, objects)
	for i := range 50 {
		makeService(ctx, t, objects, fmt.Sprintf("small-%d", i), endpointsOf(fmt.Sprintf("small-%d", i), 1, i))
	}
	makeService(ctx, t, objects, "large", endpointsOf("large", 250, 0))
	err := await.Until(ctx, "300 real servers on the guest", time.Second, 5*time.Minute, func(ctx context.Context) (bool, string, error) {
		out, err := node.Exec(ctx, "sh", "-c", "grep -c -- '->' /proc/net/ip_vs; curl -s http://127.0.0.1:10249/proxyMode")
		var servers int
		_, _ = fmt.Sscan(out, &servers)
		return servers >= 300 && strings.HasSuffix(out, "ipvs"), out, err
	})
	must.NoError(t, err)

	began, slowest, changes := time.Now(), time.Duration(0), 0
	memory := memoryOf(ctx, t, docker, node)
	t.Logf("at first: %s", memory)
	for next := began; time.Since(began) < *loadFor; {
		for i := range 50 {
			changes++
			must.NoError(t, objects.Update(ctx, endpointsOf(fmt.Sprintf("small-%d", i), 1, changes)))
		}
		asked := time.Now()
		if _, err := node.Exec(ctx, "true"); err != nil {
			t.Fatalf("after %s and %d changes: %v; the last memory was %s", time.Since(began).Round(time.Second), changes, err, memory)
		}
		slowest = max(slowest, time.Since(asked))
		memory = memoryOf(ctx, t, docker, node)
		if time.Since(next) > 30*time.Second {
			next = time.Now()
			t.Logf("after %s: %s", time.Since(began).Round(time.Second), memory)
		}
	}
	t.Logf("%d changes in %s, slowest command %s, %s", changes, time.Since(began).Round(time.Second), slowest.Round(time.Millisecond), memory)
	free, err := node.Exec(ctx, "free", "-m")
	t.Logf("in the guest:\n%s%v", free, err)
	if memory.failures > 0 {
		t.Errorf("the container came to its limit %d times", memory.failures)
	}
}

// memory is what a container takes, in MiB.
type memory struct{ resident, usage, most, limit, failures uint64 }

func (m memory) String() string {
	return fmt.Sprintf("%d MiB resident, %d with the page cache, %d at most, of %d; %d times at the limit", m.resident, m.usage, m.most, m.limit, m.failures)
}

func memoryOf(ctx context.Context, t *testing.T, docker *client.Client, node *kindlab.Node) memory {
	t.Helper()
	answer, err := docker.ContainerStatsOneShot(ctx, node.Container())
	must.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must.NoError(t, err)
	var stats container.StatsResponse
	must.NoError(t, json.Unmarshal(text, &stats))
	s := stats.MemoryStats
	resident := s.Stats["total_rss"] // cgroup v1
	if resident == 0 {
		resident = s.Stats["anon"] // v2
	}
	return memory{resident >> 20, s.Usage >> 20, s.MaxUsage >> 20, s.Limit >> 20, s.Failcnt}
}

func startKubeProxy(ctx context.Context, t *testing.T, objects *resources.Resources) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "guest-test"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "default"}},
	}
	must.NoError(t, objects.Create(ctx, binding))
	modules := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/lib/modules"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy", Namespace: "kube-system"},
		Spec: corev1.PodSpec{
			NodeName: "second", HostNetwork: true, // there is no CNI here
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Volumes:     []corev1.Volume{{Name: "modules", VolumeSource: modules}},
			Containers: []corev1.Container{{
				Name: "kube-proxy", Image: kubeProxy,
				Command: []string{"kube-proxy", "--proxy-mode=ipvs", "--hostname-override=second",
					"--ipvs-min-sync-period=0s", "--ipvs-sync-period=1s", "--iptables-sync-period=5s"},
				// The Service of the API server is what kube-proxy is to make.
				Env:             []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "10.231.1.21"}, {Name: "KUBERNETES_SERVICE_PORT", Value: "6443"}},
				SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
				VolumeMounts:    []corev1.VolumeMount{{Name: "modules", MountPath: "/lib/modules", ReadOnly: true}},
			}},
		},
	}
	runPod(ctx, t, objects, pod)
}

func makeService(ctx context.Context, t *testing.T, objects *resources.Resources, name string, endpoints *corev1.Endpoints) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}},
	}
	must.NoError(t, objects.Create(ctx, service))
	must.NoError(t, objects.Create(ctx, endpoints))
}

// endpointsOf has addresses that do not exist: nothing connects to them.
func endpointsOf(name string, number, first int) *corev1.Endpoints {
	var addresses []corev1.EndpointAddress
	for i := range number {
		addresses = append(addresses, corev1.EndpointAddress{IP: fmt.Sprintf("10.232.%d.%d", 100+(first+i)/250%100, 1+(first+i)%250)})
	}
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Subsets:    []corev1.EndpointSubset{{Addresses: addresses, Ports: []corev1.EndpointPort{{Port: 80}}}},
	}
}
