//go:build lab

package kindlab_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

func withGuest() topology.Topology {
	t := small
	t.Name = "kindlab-guest"
	t.Clusters = []topology.Cluster{t.Clusters[0]}
	t.Clusters[0].Nodes = append([]topology.Node{}, t.Clusters[0].Nodes...)
	t.Clusters[0].Nodes[1].Kernel = "6.1"
	return t
}

func upWithGuest(ctx context.Context, t *testing.T, declared topology.Topology) (*kindlab.Lab, *client.Client) {
	t.Helper()
	docker, catalogue := dockerAndImages(ctx, t, kindlab.ImagesOf(declared))
	began := time.Now()
	lab := must.Get(up(ctx, t, docker, declared, kindlab.Options{Images: catalogue}))(t)
	t.Logf("up in %s", time.Since(began).Round(time.Millisecond))
	return lab, docker
}

// dockerAndImages connects to Docker and makes sure that images are built.
func dockerAndImages(ctx context.Context, t *testing.T, refs []string) (*client.Client, *images.Catalogue) {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	catalogue := must.Get(images.Open("../../.."))(t)
	must.Get(catalogue.Build(ctx, refs, func(images.Event) {}))(t)
	return docker, catalogue
}

// up is kindlab.Up, of a lab that goes down with the test and leaves nothing.
func up(ctx context.Context, t *testing.T, docker *client.Client, declared topology.Topology, o kindlab.Options) (*kindlab.Lab, error) {
	t.Helper()
	takeDown(t, docker, declared.Name)
	o.Step = func(name string) func(error) {
		began := time.Now()
		return func(err error) { t.Logf("%s: %s %v", name, time.Since(began).Round(time.Millisecond), err) }
	}
	o.Note = func(text string) { t.Log(text) }
	lab, err := kindlab.Up(ctx, docker, declared, o)
	t.Cleanup(func() {
		if lab != nil {
			lab.Release()
		}
		takeDown(t, docker, declared.Name)
	})
	return lab, err
}

// takeDown takes a lab down and checks that nothing is left.
func takeDown(t *testing.T, docker *client.Client, name string) {
	t.Helper()
	for range 2 { // twice is no error
		must.NoError(t, kindlab.Down(context.Background(), docker, name))
	}
	// Others may have labs on this machine.
	if left, err := kindlab.Labs(context.Background(), docker); err != nil || slices.Contains(left, name) {
		t.Errorf("labs left: %v, %v", left, err)
	}
}

// TestGuestNode checks that a guest behaves like a container.
func TestGuestNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	declared := withGuest()
	lab, docker := upWithGuest(ctx, t, declared)
	// Runs before the lab goes down. Without it the garbage collector would release the
	// lock at any time.
	t.Cleanup(func() { lab.Release() })
	node := lab.Node("second")
	objects := lab.Clusters[0].Client.Resources()

	// kubelet reports the node some time after it has joined.
	registered := func(t *testing.T, before string) (bootID string) {
		t.Helper()
		var object corev1.Node
		must.NoError(t, await.Until(ctx, "kubelet on the guest", 100*time.Millisecond, 2*time.Minute,
			func(ctx context.Context) (bool, string, error) {
				err := objects.Get(ctx, "second", "", &object)
				return err == nil && object.Status.NodeInfo.BootID != before && len(object.Status.Addresses) > 0,
					fmt.Sprintf("%+v", object.Status.NodeInfo), err
			}))
		t.Logf("kubelet reported the node %s after power-on", sincePowerOn(ctx, t, docker, node))
		facts, err := lab.Guests(ctx)
		if kernel := object.Status.NodeInfo.KernelVersion; err != nil || kernel != facts[0].Kernel {
			t.Errorf("the node's kernel is %s; the lab reports %+v, %v", kernel, facts, err)
		}
		if object.Status.Addresses[0].Address != "10.231.1.11" || object.Spec.PodCIDR != "10.232.1.0/24" {
			t.Errorf("address %v, range %s", object.Status.Addresses, object.Spec.PodCIDR)
		}
		return object.Status.NodeInfo.BootID
	}
	bootID := registered(t, "")

	t.Run("its namespaces are out of reach", func(t *testing.T) {
		must.Fail(t, must.Err(node.Netns(ctx)), "second is a guest with its own kernel")
		must.Fail(t, node.InNetns(ctx, func() error { return nil }), "second is a guest with its own kernel")
	})
	t.Run("sockets", func(t *testing.T) {
		path := must.Get(node.Path(ctx, "/run/containerd/containerd.sock"))(t)
		conn := must.Get(net.Dial("unix", path))(t)
		conn.Close()
	})
	t.Run("the host reaches it through the router", func(t *testing.T) {
		if out, err := lab.Host("outside").Exec(ctx, "ping", "-c1", "-W5", "10.231.1.11"); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	})
	t.Run("no way out", func(t *testing.T) {
		// The machine would forward it, were the table not there: it has both
		// networks. The destination is in the lab anyway.
		must.Get(node.Exec(ctx, "ip", "route", "add", "10.231.2.10/32", "via", "10.231.1.1"))(t)
		before := droppedIn(t, declared.Name, "forward")
		must.Fail(t, must.Err(node.Exec(ctx, "ping", "-c2", "-W2", "10.231.2.10")))
		if dropped := droppedIn(t, declared.Name, "forward"); dropped == before {
			t.Error("the lab's table has dropped nothing")
		}
		must.Get(node.Exec(ctx, "ip", "route", "del", "10.231.2.10/32"))(t)
	})
	t.Run("a pod from the lab's registry", func(t *testing.T) {
		runPod(ctx, t, objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pause", Namespace: "default"},
			Spec: corev1.PodSpec{
				NodeName: "second", HostNetwork: true, // there is no CNI here
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers:  []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause:3.10"}},
			},
		})
	})
	t.Run("taken over", func(t *testing.T) {
		lab.Release()
		again := must.Get(kindlab.Attach(ctx, docker, declared, kindlab.Options{}))(t)
		lab, node = again, again.Node("second")
		facts, err := lab.Guests(ctx)
		if err != nil || len(facts) != 1 || (facts[0].Accelerator != "uml") != strings.HasPrefix(facts[0].Kernel, "6.1.") ||
			(facts[0].Accelerator != "kvm") != (facts[0].NotKVM != "") || (facts[0].Accelerator == "tcg") != (facts[0].NotUML != "") {
			t.Fatalf("%+v, %v", facts, err)
		}
		t.Logf("%+v", facts[0])
	})
	t.Run("power cut and on again", func(t *testing.T) {
		must.NoError(t, node.Stop(ctx))
		must.Is(t, must.Err(node.Exec(ctx, "true")), guest.ErrNotAnswering)
		must.Get(docker.ContainerStart(ctx, node.Container(), client.ContainerStartOptions{}))(t)
		err := await.Until(ctx, "the first command", 50*time.Millisecond, 2*time.Minute, func(ctx context.Context) (bool, string, error) {
			_, err := node.Exec(ctx, "true")
			return err == nil, "", err
		})
		must.NoError(t, err)
		t.Logf("first command %s after power-on", sincePowerOn(ctx, t, docker, node))
		must.NoError(t, node.Start(ctx)) // the node is on: only the wiring is left to do
		t.Logf("containerd and routes %s after power-on", sincePowerOn(ctx, t, docker, node))
		if out, err := node.Exec(ctx, "ip", "route", "show", "default"); !strings.Contains(out, "10.231.1.254") {
			t.Errorf("default route %q, %v", out, err)
		}
		registered(t, bootID)
	})
	t.Run("logs", func(t *testing.T) {
		logs := must.Get(lab.Logs(ctx, time.Time{}))(t)
		for name, want := range map[string]string{"second-console": "relapse: [", "second-journal": "kubelet", "second-pods": ""} {
			if text, ok := logs[name]; !ok || !strings.Contains(text, want) {
				t.Errorf("log %s: %d bytes without %q", name, len(text), want)
			}
		}
	})
	t.Run("without power", func(t *testing.T) {
		must.NoError(t, node.Stop(ctx))
		must.NoError(t, node.Start(ctx))
		must.NoError(t, node.Stop(ctx))
		must.Fail(t, must.Err(node.Exec(ctx, "true")), "its power is cut")
		logs, err := lab.Logs(ctx, time.Time{})
		if !strings.Contains(logs["second-console"], "relapse: [") {
			t.Error("the power cut has removed the console")
		}
		must.Fail(t, err) // the journal
	}) // the clean-up checks what is left
}

// sincePowerOn is how long ago a node was powered on last.
func sincePowerOn(ctx context.Context, t *testing.T, docker *client.Client, node *kindlab.Node) time.Duration {
	t.Helper()
	info := must.Get(docker.ContainerInspect(ctx, node.Container(), client.ContainerInspectOptions{}))(t)
	began := must.Get(time.Parse(time.RFC3339Nano, info.Container.State.StartedAt))(t)
	return time.Since(began).Round(10 * time.Millisecond)
}

// spoiled hands out a guest image that is not whole.
type spoiled struct {
	kindlab.Images
	image string
}

func (s spoiled) LoadDocker(ctx context.Context, docker *client.Client, ref string) (string, error) {
	if ref == guest.Image("6.1") {
		return s.image, nil
	}
	return s.Images.LoadDocker(ctx, docker, ref)
}

// runPod creates a pod and waits until it runs.
func runPod(ctx context.Context, t *testing.T, objects *resources.Resources, pod *corev1.Pod) {
	t.Helper()
	began := time.Now()
	// The pod may come before its ServiceAccount.
	err := await.Until(ctx, "the creation of pod "+pod.Name, 100*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		err := objects.Create(ctx, pod.DeepCopy())
		return err == nil, "", err
	})
	must.NoError(t, err)
	var p corev1.Pod
	err = await.Until(ctx, "pod "+pod.Name+" to run", 200*time.Millisecond, 4*time.Minute, func(ctx context.Context) (bool, string, error) {
		err := objects.Get(ctx, pod.Name, pod.Namespace, &p)
		settled := p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodFailed
		return err == nil && settled, fmt.Sprintf("%+v", p.Status), err
	})
	if err == nil && p.Status.Phase == corev1.PodFailed { // it stays so
		err = fmt.Errorf("pod %s: %s: %s", pod.Name, p.Status.Reason, p.Status.Message)
	}
	if err != nil {
		var events corev1.EventList
		listed := objects.List(context.Background(), &events)
		for _, e := range events.Items {
			t.Logf("%s %s/%s: %s %s", e.LastTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
		t.Fatalf("%v (events: %v)", err, listed)
	}
	t.Logf("pod %s runs %s after its creation", pod.Name, time.Since(began).Round(time.Millisecond))
}
