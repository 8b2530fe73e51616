//go:build lab

package guest_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/guest"
	"github.com/relapse-dev/relapse/topology/kindlab"
)

// oneNode is a control plane and a router. The guest joins it from outside
// the declaration.
var oneNode = topology.Topology{
	Name:     "guest-test",
	Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.231.9.0/24")}},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: 64513, NodeMask: 24,
		PodCIDR:     netip.MustParsePrefix("10.232.0.0/16"),
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{{
			Name: "first", Role: topology.ControlPlane, Via: []string{"tor"},
			Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.231.9.21")}},
		}},
	}},
	Routers: []topology.Router{{
		Name: "tor", ASN: 64524, ID: netip.MustParseAddr("10.231.9.253"),
		Links: []topology.Link{{Network: "nodes", Address: netip.MustParseAddr("10.231.9.253")}},
		Peers: []topology.Peers{{Network: "nodes", ASN: 64513}},
	}},
}

const joinConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration:
  name: second
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs:
  - {name: node-ip, value: "10.231.9.11"}
discovery:
  bootstrapToken:
    apiServerEndpoint: "10.231.9.21:6443"
    token: "%s"
    unsafeSkipCAVerification: true
skipPhases: [preflight]
`

// TestJoin has a guest join a cluster of containers, and runs a pod on it.
func TestJoin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	docker, image := dockerAndImage(t, "6.1")
	catalogue, err := images.Open("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := catalogue.Build(ctx, kindlab.ImagesOf(oneNode), func(images.Event) {}); err != nil {
		t.Fatal(err)
	}
	down := func() {
		if err := kindlab.Down(context.Background(), docker, oneNode.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	began := time.Now()
	lab, err := kindlab.Up(ctx, docker, oneNode, kindlab.Options{Images: catalogue})
	if err != nil {
		down()
		t.Fatal(err)
	}
	defer func() {
		lab.Release()
		down()
		if left, err := kindlab.Labs(context.Background(), docker); err != nil || len(left) > 0 {
			t.Errorf("labs left: %v, %v", left, err)
		}
	}()
	t.Logf("lab without the guest up in %s", time.Since(began).Round(time.Millisecond))

	state := filepath.Join(kindlab.StateDir, oneNode.Name)
	g := runNode(t, docker, image, state)
	began = time.Now()
	lap := func(what string) { t.Logf("%s %s after power-on", what, time.Since(began).Round(10*time.Millisecond)) }
	if err := docker.ContainerStart(ctx, "relapse-guest-test-second", container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			journal, err := g.Exec(context.Background(), "journalctl", "--no-pager", "-b", "-o", "short-monotonic")
			t.Logf("journal: %v\n%s", err, journal)
		}
	}()
	if err := g.Ready(ctx, time.Minute); err != nil {
		t.Fatal(err)
	}
	lap("first command")
	err = g.Wire(ctx, map[string]string{"net/ipv4/ip_forward": "1"}, []netip.Addr{netip.MustParseAddr("10.231.9.253")})
	if err != nil {
		t.Fatal(err)
	}
	err = await.Until(ctx, "containerd", 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		saw, err := g.Exec(ctx, "systemctl", "is-active", "containerd")
		return err == nil, strings.TrimSpace(saw), err
	})
	if err != nil {
		t.Fatal(err)
	}
	lap("containerd")
	token, err := lab.Node("first").Exec(ctx, "kubeadm", "token", "create", "--ttl", "10m")
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReader(fmt.Sprintf(joinConfig, strings.TrimSpace(token)))
	out, err := g.ExecInput(ctx, config, "sh", "-c", "cat >/kind/kubeadm.conf && kubeadm join -v3 --config /kind/kubeadm.conf 2>&1")
	if err != nil {
		t.Fatal(err)
	}
	lap("kubeadm join")

	objects := lab.Clusters[0].Client.Resources()
	var node corev1.Node
	err = await.Until(ctx, "the guest's Node", 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		err := objects.Get(ctx, "second", "", &node)
		return err == nil && node.Status.NodeInfo.KernelVersion != "" && len(node.Status.Addresses) > 0, "not registered by kubelet", err
	})
	if err != nil {
		t.Fatalf("%v; kubeadm said\n%s", err, out)
	}
	lap("registered")
	if kernel := node.Status.NodeInfo.KernelVersion; !strings.HasPrefix(kernel, "6.1.") {
		t.Errorf("the node's kernel is %s", kernel)
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pause", Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: "second", HostNetwork: true, // there is no CNI here
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause:3.10"}},
		},
	}
	// The pod may come before its ServiceAccount.
	err = await.Until(ctx, "the pod's creation", 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		err := objects.Create(ctx, pod.DeepCopy())
		return err == nil, "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = await.Until(ctx, "a pod on the guest to run", 200*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		var p corev1.Pod
		err := objects.Get(ctx, "pause", "default", &p)
		return err == nil && p.Status.Phase == corev1.PodRunning, fmt.Sprint(p.Status.Phase, p.Status.ContainerStatuses), err
	})
	if err != nil {
		t.Fatal(err)
	}
	lap("pod running")
	memory, err := g.Exec(ctx, "free", "-m")
	if err != nil {
		t.Error(err)
	}
	t.Logf("memory in the guest:\n%s", memory)
	if err := docker.ContainerKill(ctx, "relapse-guest-test-second", "KILL"); err != nil {
		t.Error(err)
	}
}

// runNode creates the guest's container beside those of the lab.
func runNode(t *testing.T, docker *client.Client, image, state string) *guest.Guest {
	t.Helper()
	labels := map[string]string{"dev.relapse.lab": oneNode.Name, "dev.relapse.member": "second"}
	choice, err := guest.ChooseAccelerator(t.Context(), docker, image, labels, filepath.Join(state, "accelerator"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "second")
	config, host := guest.Container(guest.Options{
		Image: image, Hostname: "second", Dir: dir, Accelerator: choice.Accelerator, CPUs: 2, Memory: 1536,
		Binds: []string{filepath.Join(state, "certs.d") + ":/etc/containerd/certs.d:ro"},
	})
	config.Labels = labels
	host.NetworkMode = "relapse-guest-test-nodes"
	_, err = docker.ContainerCreate(t.Context(), config, host, &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
		"relapse-guest-test-nodes": {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: "10.231.9.11"}},
	}}, nil, "relapse-guest-test-second")
	if err != nil {
		t.Fatal(err)
	}
	return guest.Open(docker, "relapse-guest-test-second", "second", dir)
}
