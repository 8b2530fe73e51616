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

	"github.com/relapse-dev/relapse/topology/must"
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
		pages:      filepath.Join(dir, "pages"),
	}
}

// An undo changes nothing while another process sets the machine up.
func TestUndoWaitsForSetup(t *testing.T) {
	h := hostIn(t.TempDir())
	must.NoError(t, h.remember(func(r *record) { r.Packages = []string{"debootstrap"} }))
	other := must.Get(os.Create(h.lock))(t)
	must.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var steps []string
	announce := func(step string) { steps = append(steps, step) }
	must.Is(t, h.undo(ctx, announce), context.DeadlineExceeded)
	must.Equal(t, "the record exists", true, exists(h.record))
	must.Equal(t, "steps", []string{"waiting for another set-up of this machine to end"}, steps)
	other.Close()
	must.NoError(t, h.undo(t.Context(), announce))
	must.Equal(t, "the record exists", false, exists(h.record))
}

// The default runtime of the machine's owner is not replaced, and nothing is built.
func TestForeignRuntimeStays(t *testing.T) {
	h := hostIn(t.TempDir())
	const foreign = `{"default-runtime":"nvidia","runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}`
	must.Write(t, h.daemonJSON, foreign)
	err := h.installShim(t.Context(), t.TempDir(), []string{"CAP_SYS_RESOURCE"}, func(step string) { t.Errorf("step %q", step) })
	if unfit, ok := errors.AsType[*UnfitError](err); !ok || !strings.Contains(unfit.Error(), `"nvidia" is the default OCI runtime`) {
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
	must.NoError(t, os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\necho \"$@\" >>"+args+"\n"), 0o755))
	t.Setenv("PATH", bin)
	must.NoError(t, installPackages(t.Context(), []string{"debootstrap"}, func(string) {}))
	if got := strings.Fields(read(args)); !slices.Contains(got, "--no-remove") || got[len(got)-1] != "debootstrap" {
		t.Errorf("apt-get was called with %q", got)
	}
}

// The answers of Debian's apt-cache: 12 has no package docker-cli, and 13 has one. The third is a name that
// only other packages provide.
func TestOffered(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   bool
	}{
		"Debian 12":    {"echo 'E: No packages found' >&2; exit 100", false},
		"Debian 13":    {`printf 'Package: docker-cli\nVersion: 26.1.5+dfsg1-9+b9\n'`, true},
		"provided":     {"echo \"N: Can't select versions from package 'docker-cli' as it is purely virtual\" >&2", false},
		"no apt-cache": {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			if test.script != "" {
				must.NoError(t, os.WriteFile(filepath.Join(bin, "apt-cache"), []byte("#!/bin/sh\n"+test.script+"\n"), 0o755))
			}
			t.Setenv("PATH", bin)
			must.Equal(t, "", test.want, offered(t.Context(), "docker-cli"))
		})
	}
}

// On a new machine without apt's lists the missing docker command shows once docker.io is installed.
func TestDockerCommandIsInstalled(t *testing.T) {
	fresh := observed{engine: engine{err: errors.New("no such file")}}
	for name, test := range map[string]struct {
		installed observed // after the installation of docker.io
		want      []string
	}{
		"Debian 12": {observed{engine: engine{installed: true, command: true}}, []string{"docker.io"}},
		"Debian 13": {observed{engine: engine{installed: true, split: true}}, []string{"docker.io", "docker-cli"}},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(bin, "apt-get"), []byte("#!/bin/sh\n"), 0o755))
			t.Setenv("PATH", bin)
			h := hostIn(t.TempDir())
			var steps []string
			_, err := h.installMissing(t.Context(), fresh, func() observed { return test.installed }, func(step string) { steps = append(steps, step) })
			must.NoError(t, err)
			r, err := h.recorded()
			if err != nil || !slices.Equal(r.Packages, test.want) || r.Docker == nil { // its package starts it under systemd
				t.Errorf("recorded %q, %v, %v, want %q, and the machine without Docker", r.Packages, r.Docker, err, test.want)
			}
			for i, want := range test.want {
				if i >= len(steps) || steps[i] != "installing Debian packages: "+aptInstall+" "+want {
					t.Errorf("steps %q, want the installation of %q", steps, test.want)
				}
			}
		})
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
	must.Equal(t, "", 2, checked)
}

func TestUndoSaysWhatDockerLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		before *dockerBefore
		want   string
	}{
		"not started by the set-up": {},
		"on a new machine": {&dockerBefore{Forwarding: "0", Detached: true},
			"leaving Docker, which the set-up has started; to stop it: kill $(cat /run/docker.pid); its iptables rules stay until the next boot; " +
				"to remove what else it leaves: rm /var/log/docker.log; ip link delete docker0; sysctl -w net.ipv4.ip_forward=0; iptables -P FORWARD ACCEPT"},
		"on a router that ran Docker before": {&dockerBefore{Forwarding: "1", Bridge: true},
			"leaving Docker, which the set-up has started; to stop it: systemctl stop docker.socket docker; its iptables rules stay until the next boot"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostIn(t.TempDir())
			must.NoError(t, h.remember(func(r *record) { r.Docker = test.before }))
			var steps []string
			must.NoError(t, h.undo(t.Context(), func(step string) { steps = append(steps, step) }))
			must.Equal(t, "steps", test.want, strings.Join(steps, "\n"))
		})
	}
}
