//go:build lab

package kindlab_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	nodesNet = topology.NewNetwork("nodes", "10.231.1.0/24")
	uplink   = topology.NewNetwork("uplink", "10.231.2.0/24")
)

// small is two nodes and a host with one router between them.
var small = topology.Topology{
	Name: "kindlab-test", Networks: []topology.Network{nodesNet, uplink},
	Clusters: []topology.Cluster{{
		NodeMask: 24, PodCIDR: netip.MustParsePrefix("10.232.0.0/16"), Nodes: []topology.Node{nodesNet.Node("first", 21), nodesNet.Node("second", 11)},
	}},
	Hosts: []topology.Host{uplink.Host("outside", 10)},
}.Behind(topology.OneToR(nodesNet, uplink))

// TestLab brings a lab up, checks it and takes it down.
func TestLab(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	docker, catalogue := dockerAndImages(ctx, t, kindlab.ImagesOf(small))
	down := func() {
		if err := kindlab.Down(context.Background(), docker, small.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	restored := kubeletsSetting(t)
	began := time.Now()
	lab, err := kindlab.Up(ctx, docker, small, kindlab.Options{Images: catalogue, Step: func(name string) func(error) {
		began := time.Now()
		return func(err error) { t.Logf("%s: %s %v", name, time.Since(began).Round(time.Millisecond), err) }
	}})
	defer func() {
		if lab != nil {
			lab.Release()
		}
		down()
		down() // twice is no error
		// Others may have labs on this machine.
		if left, err := kindlab.Labs(context.Background(), docker); err != nil || slices.Contains(left, small.Name) {
			t.Errorf("labs left: %v, %v", left, err)
		} else {
			restored(len(left) == 0)
		}
	}()
	must.NoError(t, err)
	t.Logf("up in %s", time.Since(began).Round(time.Millisecond))

	t.Run("pods can be bound to every node at once", func(t *testing.T) {
		var nodes corev1.NodeList
		must.NoError(t, lab.Clusters[0].Client.Resources().List(ctx, &nodes))
		for _, n := range nodes.Items {
			if n.Status.Allocatable.Pods().IsZero() {
				t.Errorf("kubelet on %s may reject them: allocatable are %v", n.Name, n.Status.Allocatable)
			}
		}
	})
	t.Run("the first node is the control plane, and takes pods", func(t *testing.T) {
		var first corev1.Node
		must.NoError(t, lab.Clusters[0].Client.Resources().Get(ctx, "first", "", &first))
		if _, has := first.Labels["node-role.kubernetes.io/control-plane"]; !has {
			t.Errorf("labels %v; want its role", first.Labels)
		}
		for _, taint := range first.Spec.Taints {
			if taint.Key == "node-role.kubernetes.io/control-plane" {
				t.Errorf("taint %v", taint)
			}
		}
	})
	// Down must remove it nevertheless.
	t.Run("a killed runc leaves a pod frozen", func(t *testing.T) {
		said, err := lab.Node("second").Exec(ctx, "bash", "-c", `cd /sys/fs/cgroup/freezer 2>/dev/null || { echo cgroup v2; exit; }
mkdir pod && { sleep 1000 </dev/null >/dev/null 2>&1 & } && echo $! >pod/cgroup.procs && echo FROZEN >pod/freezer.state &&
timeout 20 sh -c 'until grep FROZEN pod/freezer.state; do sleep 0.1; done'`)
		if said = strings.TrimSpace(said); err != nil || said != "FROZEN" && said != "cgroup v2" {
			t.Errorf("%q, %v", said, err)
		}
	})
	t.Run("no kubelet is started twice", func(t *testing.T) {
		for _, node := range lab.Clusters[0].Nodes() {
			said, err := lab.Node(node).Exec(ctx, "journalctl", "--no-pager", "-u", "kubelet", "-o", "cat")
			if starts := strings.Count(said, "Started kubelet.service"); err != nil || starts != 1 {
				t.Errorf("on %s it was started %d times, %v", node, starts, err)
			}
		}
	})
	t.Run("the registry holds links to the cache's blobs, and no copies", func(t *testing.T) {
		info := must.Get(docker.ContainerInspect(ctx, lab.Registry().Container(), client.ContainerInspectOptions{Size: true}))(t)
		if size := *info.Container.SizeRw; size > 1e6 {
			t.Errorf("it has written %d bytes", size)
		}
	})
	t.Run("nodes have the declared names, addresses and ranges", func(t *testing.T) {
		want := map[string]string{"first": "10.231.1.21 10.232.0.0/24", "second": "10.231.1.11 10.232.1.0/24"}
		// A kubelet reports its addresses some time after it has joined.
		must.NoError(t, await.Until(ctx, "the nodes' addresses and ranges", 100*time.Millisecond, 30*time.Second,
			func(ctx context.Context) (bool, string, error) {
				var nodes corev1.NodeList
				if err := lab.Clusters[0].Client.Resources().List(ctx, &nodes); err != nil {
					return false, "", err
				}
				got := map[string]string{}
				for _, n := range nodes.Items {
					for _, a := range n.Status.Addresses {
						if a.Type == corev1.NodeInternalIP {
							got[n.Name] = a.Address + " " + n.Spec.PodCIDR
						}
					}
				}
				return maps.Equal(got, want), fmt.Sprintf("%v, want %v", got, want), nil
			}))
	})
	t.Run("the host reaches a node through the router", func(t *testing.T) {
		route, err := lab.Host("outside").Exec(ctx, "ip", "route", "show", "default")
		if err != nil || !strings.Contains(route, "10.231.2.254") {
			t.Errorf("default route %q, %v; want it to go to the router", route, err)
		}
		if out, err := lab.Host("outside").Exec(ctx, "ping", "-c1", "-W2", "10.231.1.11"); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	})
	t.Run("only root reaches the lab, and the lab does not reach the machine", func(t *testing.T) { onlyRootReaches(ctx, t, lab) })
	t.Run("kind's bootstrap token is not the lab's", func(t *testing.T) { tokensAreOwn(ctx, t, lab) })
	t.Run("no question for a name leaves the machine", func(t *testing.T) { asksNoNameServer(ctx, t, lab) })
	t.Run("Docker starts no container again after a reboot", func(t *testing.T) {
		for _, m := range small.Members() {
			info, err := docker.ContainerInspect(ctx, lab.Host(m.Name).Container(), client.ContainerInspectOptions{})
			if err != nil || !info.Container.HostConfig.RestartPolicy.IsNone() {
				t.Errorf("%s: %v, %v", m.Name, info.Container.HostConfig.RestartPolicy, err)
			}
		}
	})
	t.Run("another process cannot take the lab", func(t *testing.T) {
		must.Fail(t, kindlab.Down(ctx, docker, small.Name))
	})
	t.Run("kubeconfig is for its owner only", func(t *testing.T) {
		info, err := os.Stat(lab.Clusters[0].Kubeconfig)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
		}
	})
}

// kubeletsSetting gives a kernel setting that kubelet changes another value than kubelet does. It
// returns a check that the value is there again, and that puts back what was there before.
func kubeletsSetting(t *testing.T) (restored func(last bool)) {
	const path, ours = "/proc/sys/kernel/panic", "7"
	was, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(ours), 0)
	}
	must.NoError(t, err)
	return func(last bool) {
		value, err := os.ReadFile(path)
		if last && strings.TrimSpace(string(value)) != ours || err != nil { // a lab of somebody else's still needs kubelet's
			t.Errorf("kernel.panic is %s after the last lab, and was %s before it (%v)", strings.TrimSpace(string(value)), ours, err)
		}
		if err := os.WriteFile(path, was, 0); err != nil {
			t.Error(err)
		}
	}
}
