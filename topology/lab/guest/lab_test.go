//go:build lab

package guest_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
	"github.com/relapse-dev/relapse/topology/must"
)

// dockerAndImage connects to Docker and makes the guest's image known to it.
func dockerAndImage(t *testing.T, kernel string) (*client.Client, string) {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	catalogue := must.Get(images.Open("../../.."))(t)
	ref := guest.Image(kernel)
	must.Get(catalogue.Build(t.Context(), []string{ref}, func(images.Event) {}))(t)
	return docker, must.Get(catalogue.LoadDocker(t.Context(), docker, ref))(t)
}

// TestChooseAccelerator checks the limit and that the answer is remembered.
func TestChooseAccelerator(t *testing.T) {
	docker, image := dockerAndImage(t, "6.1")
	remember := filepath.Join(t.TempDir(), "accelerator")
	began := time.Now()
	choice, err := guest.ChooseAccelerator(t.Context(), docker, image, nil, remember)
	took := time.Since(began)
	must.NoError(t, err)
	t.Logf("%+v after %s", choice, took.Round(time.Millisecond))
	if took > 24*time.Second {
		t.Errorf("the choice took %s; 10 s and a container are allowed for each that is tried", took)
	}
	if (choice.Accelerator != launch.KVM) != (choice.NotKVM != "") || (choice.Accelerator == launch.TCG) != (choice.NotUML != "") {
		t.Error("no reason why the others are not used, or one why this is not")
	}
	began = time.Now()
	again, err := guest.ChooseAccelerator(t.Context(), docker, image, nil, remember)
	if err != nil || again != choice || time.Since(began) > time.Second {
		t.Errorf("asked again: %+v, %v after %s", again, err, time.Since(began))
	}
}

// TestNoKernelPackage runs the part of the image's recipe that takes the kernel from the package archive,
// with an archive that has none.
func TestNoKernelPackage(t *testing.T) {
	_, image := dockerAndImage(t, "6.1")
	out, err := exec.CommandContext(t.Context(), "docker", "run", "--rm", "--network", "none", "--entrypoint", "sh",
		image, "-e", "/kind/kernel.sh", "linux-image-none").CombinedOutput()
	if err == nil || !strings.HasSuffix(string(out), "the package archive has no kernel package linux-image-none\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestGuest boots the guest that labs get on this machine. The night boots one with each kernel.
func TestGuest(t *testing.T) {
	docker, image := dockerAndImage(t, topology.Kernels[0])
	choice := must.Get(guest.ChooseAccelerator(t.Context(), docker, image, nil, filepath.Join(t.TempDir(), "accelerator")))(t)
	t.Logf("%+v", choice)
	uname := "node1 " + topology.Kernels[0] + "."
	if choice.Accelerator == launch.UML {
		uname = "node1 " // its kernel is its own program
	}
	testGuest(t, docker, image, choice.Accelerator, uname)
}

// testGuest boots a guest on a separate network, checks it, cuts its power, boots it
// again and removes it.
func testGuest(t *testing.T, docker *client.Client, image string, accelerator launch.Accelerator, uname string) {
	ctx := t.Context()
	dir := t.TempDir()
	const name = "guest-test"
	address := netip.MustParseAddr("10.231.7.11")
	remove := func() {
		_, _ = docker.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		_, _ = docker.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{})
	}
	remove()
	t.Cleanup(remove)
	must.Get(docker.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Driver: "bridge", Internal: true,
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{
			Subnet: netip.MustParsePrefix("10.231.7.0/24"), Gateway: netip.MustParseAddr("10.231.7.1"),
		}}},
	}))(t)
	config, host := guest.Container(guest.Options{
		Image: image, Hostname: "node1", Dir: dir, Config: launch.Config{Accelerator: accelerator, CPUs: 2, Memory: 1024},
	})
	host.NetworkMode = name
	must.Get(docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: name, Config: config, HostConfig: host,
		NetworkingConfig: &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			name: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: address}},
		}},
	}))(t)
	g := guest.Open(docker, name, "node1", dir)
	t.Cleanup(func() {
		if exists, _ := exec.Command("docker", "ps", "-aq", "--filter", "name="+name).Output(); t.Failed() && len(exists) > 0 {
			console, err := guest.Log(context.Background(), docker, name, time.Time{}, false)
			t.Logf("console: %v\n%s", err, console)
		}
	})
	powerOn := func(t *testing.T) {
		began := time.Now()
		must.Get(docker.ContainerStart(ctx, name, client.ContainerStartOptions{}))(t)
		must.NoError(t, g.Ready(ctx, time.Minute))
		t.Logf("first command %s after power-on", time.Since(began).Round(time.Millisecond))
	}
	run := func(t *testing.T, command ...string) string {
		t.Helper()
		out, err := g.Exec(ctx, command...)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(out)
	}
	powerOn(t)

	t.Run("kernel and name are its own", func(t *testing.T) {
		if got := run(t, "uname", "-nr"); !strings.HasPrefix(got, uname) {
			t.Errorf("uname says %q", got)
		}
	})
	t.Run("streams and status", func(t *testing.T) {
		out, err := g.ExecInput(ctx, strings.NewReader("in"), "sh", "-c", "cat; echo err >&2; exit 3")
		var exit *guest.ExitError
		if out != "in" || !errors.As(err, &exit) || exit.Status != 3 || !strings.Contains(exit.Output, "err") {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("modules", func(t *testing.T) {
		run(t, "modprobe", "-a", "ip_vs", "ip_vs_rr", "dummy", "br_netfilter", "ipip", "veth", "vxlan")
	})
	t.Run("many bytes", func(t *testing.T) { // both ways, and any byte
		content := strings.Repeat("\x00\r\n\x03\x04\x11\x13\xff", 1<<15)
		must.Equal(t, "", content, must.Get(g.ExecInput(ctx, strings.NewReader(content), "cat"))(t))
	})
	t.Run("owns the address", func(t *testing.T) {
		// No program listens there: the guest's answer is the proof.
		_, err := net.DialTimeout("tcp", netip.AddrPortFrom(address, 9).String(), 5*time.Second)
		must.Is(t, err, syscall.ECONNREFUSED)
		must.Contain(t, run(t, "ip", "-br", "-4", "address", "show", "eth0"), address.String()+"/24")
	})
	t.Run("systemd and containerd", func(t *testing.T) {
		began := time.Now()
		for run(t, "systemctl", "show", "--property=ActiveState", "--value", "containerd") != "active" {
			if time.Since(began) > time.Minute {
				t.Fatalf("containerd: %s", run(t, "systemctl", "status", "containerd"))
			}
		}
		t.Logf("containerd active %s later", time.Since(began).Round(time.Millisecond))
		t.Log(run(t, "systemctl", "--failed", "--no-legend"), run(t, "systemd-analyze"), run(t, "free", "-m"))
	})
	t.Run("hangs", func(t *testing.T) {
		must.Get(docker.ContainerPause(ctx, name, client.ContainerPauseOptions{}))(t)
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		must.Is(t, must.Err(g.Exec(short, "true")), context.DeadlineExceeded)
		must.Get(docker.ContainerUnpause(ctx, name, client.ContainerUnpauseOptions{}))(t)
		run(t, "true")
	})
	t.Run("loses its channel", func(t *testing.T) {
		cut := make(chan error, 1)
		go func() {
			_, err := g.Exec(ctx, "sh", "-c", "touch /run/waits; exec sleep 600")
			cut <- err
		}()
		run(t, "sh", "-c", "until [ -e /run/waits ]; do sleep 0.1; done")
		// The agent is killed, and this command with it.
		must.Fail(t, must.Err(g.Exec(ctx, "systemctl", "kill", "--signal=KILL", "relapse-agent")))
		select {
		case err := <-cut:
			if err == nil || errors.As(err, new(*guest.ExitError)) {
				t.Errorf("a command under way: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("a command under way still waits")
		}
		must.NoError(t, g.Ready(ctx, time.Minute))
	})
	t.Run("is killed", func(t *testing.T) {
		inside := must.Get(docker.ContainerTop(ctx, name, client.ContainerTopOptions{Arguments: []string{"-eo", "pid,args"}}))(t)
		killed := 0
		for _, process := range inside.Processes {
			program := filepath.Base(strings.Fields(process[1])[0])
			if pid, err := strconv.Atoi(process[0]); err == nil && (program == "linux" || strings.HasPrefix(program, "qemu-system")) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // one of several may have gone with another
				killed++
			}
		}
		if killed == 0 {
			t.Fatalf("no kernel among %q", inside.Processes)
		}
		wait := docker.ContainerWait(ctx, name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case <-wait.Result:
		case err := <-wait.Error:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("its container still runs")
		}
		if _, err := g.Exec(ctx, "true"); !errors.Is(err, guest.ErrNotAnswering) || !strings.Contains(err.Error(), "it ended at") {
			t.Errorf("without a kernel: %v", err)
		}
		powerOn(t)
	})
	t.Run("power cut and on again", func(t *testing.T) {
		run(t, "sh", "-c", "echo kept >/var/lib/kubelet/kept; echo kept >/etc/kept; sync")
		must.Get(docker.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "KILL"}))(t)
		must.Is(t, must.Err(g.Exec(ctx, "true")), guest.ErrNotAnswering)
		powerOn(t)
		must.Equal(t, "the disk holds", "kept\nkept", run(t, "cat", "/var/lib/kubelet/kept", "/etc/kept"))
	})
	t.Run("memory and leftovers", func(t *testing.T) {
		out, _ := exec.Command("docker", "stats", "--no-stream", "--format", "{{.MemUsage}} {{.CPUPerc}}", name).CombinedOutput()
		t.Logf("container: %s", out)
		remove()
		if left, err := exec.Command("docker", "ps", "-aq", "--filter", "name="+name).Output(); err != nil || len(left) > 0 {
			t.Errorf("left: %s, %v", left, err)
		}
		if left, err := os.ReadDir("/sys/class/net"); err == nil {
			for _, l := range left {
				if strings.HasPrefix(l.Name(), "tap") {
					t.Errorf("interface %s is left", l.Name())
				}
			}
		}
	})
}
