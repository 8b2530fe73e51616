package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
)

// startBound bounds dockerd's start: it takes about a second, and more if it
// restarts many containers.
const startBound = 90 * time.Second

// startDocker starts the Docker engine, which survives this program, and waits for its answer.
func (h host) startDocker(ctx context.Context, announce func(string)) error {
	const consequences = "; it creates the bridge docker0, adds iptables rules and sets " +
		forwardingSetting + " to 1 and, if that was 0, the policy of FORWARD to DROP, all of which stay when it ends"
	// Cancelled with the reason if dockerd ends before it answers.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	if pid, running := h.dockerd(); !running {
		// A killed dockerd leaves its PID file, and the next one refuses to start
		// while any process has that PID.
		if pid != "" {
			if err := os.Remove(h.pidFile); err != nil {
				return fmt.Errorf("removing the PID file of a killed dockerd: %w", err)
			}
		}
		if err := h.rememberDocker(); err != nil {
			return err
		}
		if exists(systemd) {
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

const (
	dockerBridge      = "docker0"
	forwardingSetting = "net.ipv4.ip_forward"
)

const systemd = "/run/systemd/system"

// rememberDocker records the machine's state before dockerd runs. Under systemd the package starts it.
func (h host) rememberDocker() error {
	before := &dockerBefore{
		Forwarding: strings.TrimSpace(read(h.sysctl(forwardingSetting))),
		Bridge:     exists("/sys/class/net/" + dockerBridge),
		Detached:   !exists(systemd),
	}
	return h.remember(func(r *record) { r.Docker = cmp.Or(r.Docker, before) })
}

// dockerBefore is the state of the machine before Setup started dockerd.
type dockerBefore struct {
	Forwarding string `json:"forwarding"` // net.ipv4.ip_forward
	Bridge     bool   `json:"bridge"`     // docker0 exists
	Detached   bool   `json:"detached"`   // dockerd has no service manager, and a log of its own
}

// left says what dockerd leaves when it ends, and how to remove it; "" if Setup did not start it. Undo
// does not remove it, because running containers need it.
func (d *dockerBefore) left() string {
	if d == nil {
		return ""
	}
	stop, remove := "systemctl stop docker.socket docker", []string{}
	if d.Detached {
		stop, remove = "kill $(cat /run/docker.pid)", []string{"rm " + dockerLog}
	}
	if !d.Bridge {
		remove = append(remove, "ip link delete "+dockerBridge)
	}
	if d.Forwarding == "0" { // then dockerd also changed the policy of FORWARD
		remove = append(remove, "sysctl -w "+forwardingSetting+"=0", "iptables -P FORWARD ACCEPT")
	}
	text := "to stop it: " + stop + "; its iptables rules stay until the next boot"
	if len(remove) > 0 {
		text += "; to remove what else it leaves: " + strings.Join(remove, "; ")
	}
	return text
}

// detachDockerd starts dockerd in its own session. Debian's init script was
// rejected: it raises limits, which fails without CAP_SYS_RESOURCE.
func detachDockerd(ended context.CancelCauseFunc) error {
	log, err := os.OpenFile(dockerLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(find("dockerd")) // no context: it outlives this program
	cmd.Dir = "/"
	// No container starts without dockerd's temporary folder, and the caller's may be
	// removed before dockerd ends, such as the folder of a CI job.
	cmd.Env = append(os.Environ(), sbinPath(), "TMPDIR=/tmp")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		err := cmd.Wait()
		ended(fmt.Errorf("dockerd ended (%v); the last lines of %s:\n%s", err, dockerLog, lastLines(read(dockerLog), 8)))
	}()
	return nil
}
