package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hostIn is a machine with all files in one folder.
func hostIn(dir string) host {
	return host{
		daemonJSON: filepath.Join(dir, "daemon.json"),
		pidFile:    filepath.Join(dir, "docker.pid"),
		shim:       filepath.Join(dir, "runc-caps"),
		record:     filepath.Join(dir, "setup.json"),
		lock:       filepath.Join(dir, "setup.lock"),
		sysctls:    filepath.Join(dir, "sys"),
	}
}

// An undo changes nothing while another process sets the machine up.
func TestUndoWaitsForSetup(t *testing.T) {
	h := hostIn(t.TempDir())
	if err := h.remember(func(r *record) { r.Packages = []string{"debootstrap"} }); err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(h.lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var steps []string
	announce := func(step string) { steps = append(steps, step) }
	if err := h.undo(ctx, announce); !errors.Is(err, context.DeadlineExceeded) || !exists(h.record) {
		t.Errorf("%v, and the record exists: %t", err, exists(h.record))
	}
	if want := []string{"waiting for another set-up of this machine to end"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	other.Close()
	if err := h.undo(t.Context(), announce); err != nil || exists(h.record) {
		t.Errorf("%v, and the record exists: %t", err, exists(h.record))
	}
}

// The default runtime of the machine's owner is not replaced, and nothing is built.
func TestForeignRuntimeStays(t *testing.T) {
	h := hostIn(t.TempDir())
	const foreign = `{"default-runtime":"nvidia","runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}`
	if err := os.WriteFile(h.daemonJSON, []byte(foreign), 0o644); err != nil {
		t.Fatal(err)
	}
	err := h.installShim(t.Context(), t.TempDir(), []string{"CAP_SYS_RESOURCE"}, func(step string) { t.Errorf("step %q", step) })
	if unfit, is := errors.AsType[*UnfitError](err); !is || !strings.Contains(unfit.Error(), `"nvidia" is the default OCI runtime`) {
		t.Errorf("%v, want that relapse does not replace nvidia", err)
	}
	if got := read(h.daemonJSON); got != foreign || exists(h.record) {
		t.Errorf("daemon.json is %s", got)
	}
}

// apt-get is not allowed to remove packages.
func TestInstallationRemovesNothing(t *testing.T) {
	bin := t.TempDir()
	args := filepath.Join(bin, "args")
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\necho \"$@\" >>"+args+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	if err := installPackages(t.Context(), []string{"debootstrap"}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(read(args)); !slices.Contains(got, "--no-remove") || got[len(got)-1] != "debootstrap" {
		t.Errorf("apt-get was called with %q", got)
	}
}

// The cure for a full disk names no command that removes what is not relapse's.
func TestDiskCuresRemoveNothingElse(t *testing.T) {
	full := observed{disks: []disk{{what: "Docker's data", path: "/"}, {what: "the image cache", path: "/"}}}
	checked := 0
	for _, c := range full.judge().Checks {
		if strings.HasPrefix(c.Name, "disk") {
			checked++
			if c.State != Fatal || c.Cure == "" || strings.Contains(c.Cure, "docker") && strings.Contains(c.Cure, "prune") {
				t.Errorf("%s: cure %q", c.Name, c.Cure)
			}
		}
	}
	if checked != 2 {
		t.Errorf("%d checks of disks, want 2", checked)
	}
}

func TestUndoSaysWhatDockerLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		before *dockerBefore
		want   string
	}{
		"not started by the set-up": {},
		"on a new machine": {
			&dockerBefore{Forwarding: "0", Detached: true},
			"leaving Docker, which the set-up has started; to stop it: kill $(cat /run/docker.pid); its iptables rules stay until the next boot; " +
				"to remove what else it leaves: rm /var/log/docker.log; ip link delete docker0; sysctl -w net.ipv4.ip_forward=0; iptables -P FORWARD ACCEPT",
		},
		"on a router that ran Docker before": {
			&dockerBefore{Forwarding: "1", Bridge: true},
			"leaving Docker, which the set-up has started; to stop it: systemctl stop docker.socket docker; its iptables rules stay until the next boot",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostIn(t.TempDir())
			if err := h.remember(func(r *record) { r.Docker = test.before }); err != nil {
				t.Fatal(err)
			}
			var steps []string
			if err := h.undo(t.Context(), func(step string) { steps = append(steps, step) }); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(steps, "\n"); got != test.want {
				t.Errorf("steps %q, want %q", got, test.want)
			}
		})
	}
}
