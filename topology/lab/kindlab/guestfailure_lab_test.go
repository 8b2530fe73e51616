//go:build lab && night

package kindlab_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestGuestThatDoesNotBoot spoils the guest's image: the error must name the reason, and the console must be
// there for the report.
func TestGuestThatDoesNotBoot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	declared := withGuest()
	docker, catalogue := dockerAndImages(ctx, t, kindlab.ImagesOf(declared))
	good := must.Get(catalogue.LoadDocker(ctx, docker, guest.Image("6.1")))(t)
	spoil := func(t *testing.T, command string) kindlab.Options {
		const tag = "relapse.dev/guest-test:spoiled"
		build := exec.CommandContext(ctx, "docker", "build", "-q", "-t", tag, "-")
		build.Stdin = strings.NewReader("FROM " + good + "\nRUN " + command + "\n")
		id := must.Get(build.Output())(t)
		t.Cleanup(func() {
			if out, err := exec.Command("docker", "rmi", "-f", tag).CombinedOutput(); err != nil {
				t.Errorf("%s: %v", out, err)
			}
		})
		return kindlab.Options{Images: spoiled{catalogue, strings.TrimSpace(string(id))}}
	}
	const withoutUML = "echo it is spoiled >/opt/uml/lacks; " // UML would boot
	t.Run("no QEMU", func(t *testing.T) {
		must.Fail(t, must.Err(up(ctx, t, docker, declared, spoil(t, withoutUML+"rm /usr/bin/qemu-system-x86_64"))), "the image has no qemu-system-x86_64: rebuild it")
	})
	t.Run("no kernel", func(t *testing.T) {
		must.Fail(t, must.Err(up(ctx, t, docker, declared, spoil(t, withoutUML+"rm /boot/vmlinuz"))), "the image has no /boot/vmlinuz: rebuild it")
	})
	t.Run("the kernel panics", func(t *testing.T) {
		lab, err := up(ctx, t, docker, declared, spoil(t, withoutUML+"truncate -s 0 /boot/initramfs"))
		must.Fail(t, err, "guest second did not boot", "or its kernel has panicked")
		logs, _ := lab.Logs(ctx, time.Time{}) // most of the lab never came up
		must.Contain(t, logs["second-console"], "Kernel panic")
	})
}

// TestKilledWithGuest kills the process that brings a lab up with SIGKILL, while its guest boots.
func TestKilledWithGuest(t *testing.T) {
	const child = "RELAPSE_TEST_BRINGS_UP"
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	declared := withGuest()
	docker, catalogue := dockerAndImages(ctx, t, kindlab.ImagesOf(declared))
	if os.Getenv(child) != "" {
		_, err := kindlab.Up(ctx, docker, declared, kindlab.Options{Images: catalogue})
		t.Fatalf("it should have been killed: %v", err)
	}
	takeDown(t, docker, declared.Name)
	process := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledWithGuest$")
	process.Env = append(os.Environ(), child+"=1")
	must.NoError(t, process.Start())
	err := await.Until(ctx, "the guest's container to run", 50*time.Millisecond, time.Minute, func(ctx context.Context) (bool, string, error) {
		info, err := docker.ContainerInspect(ctx, "relapse-kindlab-guest-k8s-second", client.ContainerInspectOptions{})
		return err == nil && info.Container.State.Running, "it does not run", err
	})
	must.NoError(t, err)
	must.NoError(t, process.Process.Kill())
	_ = process.Wait() // killed
	takeDown(t, docker, declared.Name)
}
