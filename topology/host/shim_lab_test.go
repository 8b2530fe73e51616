//go:build lab

package host

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestShim registers the shim with a Docker engine of the test's own, beside
// the machine's, and takes it back.
func TestShim(t *testing.T) {
	dir := t.TempDir()
	h := hostIn(dir)
	for name, least := range inotifyLimits {
		must.NoError(t, writeFile(h.sysctl(name), []byte(strconv.Itoa(least)), 0o644))
	}
	const original = `{ "debug":true, "log-opts":{"max-size":"10m"} }`
	must.Write(t, h.daemonJSON, original)
	startEngine(t, dir, h)

	before := h.observe(t.Context(), Needs{})
	if before.trial.err == nil {
		t.Skipf("Docker %s runs privileged containers here without the shim (missing: %q)", before.engine.version, before.missing)
	}

	var steps []string
	announce := func(step string) { steps = append(steps, step) }
	report := must.Get(h.setup(t.Context(), Needs{}, filepath.Join("..", ".."), announce))(t)
	if len(steps) != 2 || !strings.HasPrefix(steps[0], "building") || !strings.HasPrefix(steps[1], "making") {
		t.Errorf("steps = %q, want building and registering the shim", steps)
	}
	must.NoError(t, report.Err())

	steps = nil
	if _, err := h.setup(t.Context(), Needs{}, "/nonexistent", announce); err != nil || steps != nil {
		t.Errorf("setting up again: steps %q, error %v; want none", steps, err)
	}

	must.NoError(t, h.undo(t.Context(), announce))
	must.Equal(t, "daemon.json", original, read(h.daemonJSON))
	undone := h.observe(t.Context(), Needs{})
	must.Equal(t, "default runtime after undoing", "runc", undone.engine.runtime)
	must.Fail(t, undone.trial.err) // a privileged container, after undoing
}

// TestRefusedConfigurationIsRolledBack makes dockerd refuse the shim: the file may not repeat an option of
// the command line.
func TestRefusedConfigurationIsRolledBack(t *testing.T) {
	dir := t.TempDir()
	h := hostIn(dir)
	const original = "{}"
	must.Write(t, h.daemonJSON, original)
	startEngine(t, dir, h, "--default-runtime", "runc")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Fail(t, h.installShim(ctx, filepath.Join("..", ".."), []string{"CAP_SYS_RESOURCE"}, func(string) {}), "last seen: runc")
	must.Equal(t, "daemon.json", original, read(h.daemonJSON))
}

// startEngine starts a dockerd that shares nothing with the machine's, and
// points DOCKER_HOST at it.
func startEngine(t *testing.T, dir string, h host, flags ...string) {
	t.Helper()
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	t.Setenv("DOCKER_HOST", socket)
	log := must.Get(os.Create(filepath.Join(dir, "log")))(t)
	cmd := exec.Command(find("dockerd"), append(flags,
		"--host", socket, "--config-file", h.daemonJSON, "--pidfile", h.pidFile,
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--bridge", "none", "--iptables=false", "--ip-forward=false")...)
	// In a network of its own: an engine without a bridge removes docker0 when it
	// starts, whoever made it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), sbinPath())
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			t.Logf("dockerd's log ends:\n%s", lastLines(read(log.Name()), 20))
		}
	})
	must.NoError(t, await.Until(t.Context(), "Docker to answer", 100*time.Millisecond, startBound,
		func(ctx context.Context) (bool, string, error) {
			_, _, err := engineInfo(ctx)
			return err == nil, "", err
		}))
}
