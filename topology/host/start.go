package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
)

// startBound is how long dockerd may take to answer: a second here, more
// where it restarts many containers.
const startBound = 90 * time.Second

// startDocker starts the Docker engine and waits until it answers. It runs
// on when this program ends.
func (h host) startDocker(ctx context.Context, announce func(string)) error {
	const consequences = "; it makes the bridge docker0, adds its own iptables rules and switches net.ipv4.ip_forward on"
	// If dockerd ends before it answers, this is cancelled with the reason.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	if pid, running := h.dockerd(); !running {
		// A killed dockerd leaves its PID behind, and the next one refuses to
		// start while any process has that number.
		if pid != "" {
			if err := os.Remove(h.pidFile); err != nil {
				return fmt.Errorf("removing the PID file of a dockerd that is gone: %w", err)
			}
		}
		if exists("/run/systemd/system") {
			announce("starting Docker: systemctl start docker" + consequences)
			if err := run(ctx, "", nil, "systemctl", "start", "docker"); err != nil {
				return err
			}
		} else {
			announce("starting Docker: dockerd (log in " + dockerLog + ")" + consequences)
			if err := detachDockerd(cancel); err != nil {
				return err
			}
		}
	}
	err := await.Until(ctx, "Docker to answer", 100*time.Millisecond, startBound,
		func(ctx context.Context) (bool, string, error) {
			_, _, err := engineInfo(ctx)
			return err == nil, "", err
		})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// detachDockerd starts dockerd in a session of its own. Debian's init script
// was rejected: it insists on raising limits, which fails on the very
// machines that have no systemd and do not grant CAP_SYS_RESOURCE.
func detachDockerd(ended context.CancelCauseFunc) error {
	log, err := os.OpenFile(dockerLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(find("dockerd")) // no context: it outlives this program
	cmd.Dir = "/"
	// The caller's temporary folder may go before dockerd does, a CI job's for one, and no
	// container starts without it.
	cmd.Env = append(os.Environ(), sbinPath(), "TMPDIR=/tmp")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		err := cmd.Wait()
		ended(fmt.Errorf("dockerd ended (%v); the end of %s:\n%s", err, dockerLog, lastLines(read(dockerLog), 8)))
	}()
	return nil
}
