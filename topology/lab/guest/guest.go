package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
	"github.com/relapse-dev/relapse/topology/status"
)

// Image is the image of guests with a kernel, one of topology.Kernels.
func Image(kernel string) string { return "relapse.dev/guest:" + kernel }

// runDir is the folder of the launcher's sockets in the container.
const runDir = "/run/relapse"

// Options are the options of a guest.
type Options struct {
	// Image is Docker's reference of the guest's image.
	Image string
	// Hostname is the host name of the container and of the guest.
	Hostname string
	// Dir is a folder of the machine for the channel's sockets, used by this guest only.
	Dir string
	// Binds are mounted into the container (host:container:ro) and are part of the
	// guest's file system, read-only.
	Binds []string
	// Config is the guest's machine. The container gets more than its Memory: see Overhead.
	launch.Config
}

// Overhead is the memory in MiB that a guest's container may use in addition to the guest's. Under
// TCG QEMU uses 256 for translated code (see package launch) and about 170 for its TLBs and heap:
// with kube-proxy and 300 endpoints, 1190 MiB in all after ten minutes. The rest is page cache of
// the disk and the image, and a reserve for more TLBs.
const Overhead = 768

// Container is the container of a guest. The caller adds labels and networks, which
// must be attached before it starts. The container is not privileged.
func Container(o Options) (*container.Config, *container.HostConfig) {
	config := &container.Config{
		Image:    o.Image,
		Hostname: o.Hostname,
		Cmd: []string{
			"--accelerator", string(o.Accelerator), "--dir", runDir,
			"--cpus", strconv.Itoa(o.CPUs), "--memory", strconv.Itoa(o.Memory),
			"--seat", strconv.Itoa(o.Seat),
		},
		StopSignal: "SIGTERM", // the node image has a signal for systemd
	}
	host := &container.HostConfig{
		CapAdd: []string{"NET_ADMIN"}, // bridge and tap
		Binds:  append([]string{o.Dir + ":" + runDir}, o.Binds...),
		Sysctls: map[string]string{ // the container itself has no address
			"net.ipv6.conf.all.disable_ipv6":     "1",
			"net.ipv6.conf.default.disable_ipv6": "1",
		},
		Resources: container.Resources{
			Devices: []container.DeviceMapping{device("/dev/net/tun")},
			Memory:  int64(o.Memory+Overhead) << 20,
			// Half of another container's share: with several busy guests, a write to the
			// API server took half a second.
			CPUShares: 512,
		},
	}
	require(host, o.Accelerator, o.Memory)
	return config, host
}

const kvmDevice = "/dev/kvm"

// require adds an accelerator's requirements to a container, for a guest with this memory in MiB.
func require(host *container.HostConfig, a launch.Accelerator, memory int) {
	switch a {
	case launch.KVM:
		host.Devices = append(host.Devices, device(kvmDevice))
	case launch.UML:
		// Docker's own tmpfs, /dev/shm, is too small, and is mounted noexec.
		host.Tmpfs = map[string]string{launch.UMLMemory: fmt.Sprintf("rw,exec,nosuid,nodev,mode=0700,size=%dm", memory+umlExtra)}
	}
}

// umlExtra is the space in MiB for UML's control socket and own pages, in addition to
// the guest's memory.
const umlExtra = 64

func device(path string) container.DeviceMapping {
	return container.DeviceMapping{PathOnHost: path, PathInContainer: path, CgroupPermissions: "rw"}
}

// Guest is the handle of a guest, whether it runs or not.
type Guest struct {
	name      string
	dir       string
	container string
	docker    *client.Client
}

// Open returns the handle of the guest in a container whose Options.Dir is dir. The
// name is used in errors.
func Open(docker *client.Client, container, name, dir string) *Guest {
	return &Guest{name: name, dir: dir, container: container, docker: docker}
}

// ExitError is a command that ended with another status than 0 on a guest or another member of a lab.
type ExitError struct {
	Member  string
	Command []string
	Status  int
	Output  string // standard output and standard error, interleaved
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("on %s: %s: exit status %d: %s", e.Member, Quote(e.Command), e.Status, LastLines(e.Output, 15))
}

// Quote is a command as one types it. A script of several lines is cut after its first one,
// for a sentence that names the command.
func Quote(command []string) string {
	first, rest, several := strings.Cut(shellescape.QuoteCommand(command), "\n")
	if !several {
		return first
	}
	return fmt.Sprintf("%s ... (%d more lines)", first, strings.Count(rest, "\n")+1)
}

// ErrNotAnswering says that the guest's agent does not answer: the guest is booting,
// switched off, or has failed. Its console, the container's log, shows which.
var ErrNotAnswering = errors.New("the guest's agent does not answer")

// Exec runs a command in the guest as root and returns its standard output. The error is an
// *ExitError if the exit status is not 0. When ctx ends, the command and its children are killed.
func (g *Guest) Exec(ctx context.Context, command ...string) (string, error) {
	return g.ExecInput(ctx, nil, command...)
}

// ExecInput is Exec with a standard input, which may be nil.
func (g *Guest) ExecInput(ctx context.Context, input io.Reader, command ...string) (string, error) {
	var stdout, output bytes.Buffer
	status, err := g.run(ctx, channel.Request{Exec: command}, input, io.MultiWriter(&stdout, &output), &output)
	switch {
	case err == nil && status.Error != "":
		err = errors.New(status.Error)
	case errors.Is(err, ErrNotAnswering):
		err = g.whyNot(ctx, err)
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("on %s: %s: %w", g.name, Quote(command), err)
	}
	if status.Status != 0 {
		return stdout.String(), &ExitError{Member: g.name, Command: command, Status: status.Status, Output: output.String()}
	}
	return stdout.String(), nil
}

func (g *Guest) run(ctx context.Context, request channel.Request, input io.Reader, stdout, stderr io.Writer) (channel.ExitStatus, error) {
	var status channel.ExitStatus
	conn, r, err := g.ask(ctx, request)
	if err != nil {
		return status, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	go send(conn, input)
	for frames := gob.NewDecoder(r); ; {
		var frame channel.Frame
		err := frames.Decode(&frame)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return status, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return status, ErrNotAnswering
		default:
			return status, err
		}
		if frame.Exit != nil {
			return *frame.Exit, nil
		}
		_, err = stdout.Write(frame.Stdout)
		if err == nil {
			_, err = stderr.Write(frame.Stderr)
		}
		if err != nil {
			return status, err
		}
	}
}

// send sends a command's standard input and its end. It returns no error, because the
// command's exit status shows an incomplete input.
func send(conn io.Writer, input io.Reader) {
	frames := gob.NewEncoder(conn)
	if input != nil {
		write := channel.FrameWriter(func(p []byte) error { return frames.Encode(channel.Frame{Input: p}) })
		_, _ = io.Copy(write, struct{ io.Reader }{input}) // in parts: a WriterTo may write all at once
	}
	_ = frames.Encode(channel.Frame{})
}

func (g *Guest) ask(ctx context.Context, request channel.Request) (net.Conn, *bufio.Reader, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(g.dir, launch.Socket))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotAnswering, err)
	}
	if err := channel.WriteLine(conn, request); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("%w: %w", ErrNotAnswering, err)
	}
	return conn, bufio.NewReader(conn), nil
}

// whyNot replaces an ErrNotAnswering by an error that says how the guest ended, if it has ended.
func (g *Guest) whyNot(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	inspected, inspectErr := g.docker.ContainerInspect(ctx, g.container, client.ContainerInspectOptions{})
	state := inspected.Container.State
	switch {
	case errdefs.IsNotFound(inspectErr):
		return fmt.Errorf("%w: it has no container", ErrNotAnswering)
	case inspectErr != nil || state == nil || state.Running:
		return err
	case state.Status == container.StateCreated:
		return fmt.Errorf("%w: it was never powered on", ErrNotAnswering)
	case state.ExitCode == killed && !state.OOMKilled:
		return fmt.Errorf("%w: its power is cut", ErrNotAnswering)
	}
	return fmt.Errorf("%w: it ended at %s with exit status %d: %s",
		ErrNotAnswering, state.FinishedAt, state.ExitCode, g.consoleEnd(ctx, 1))
}

// killed is the exit status of a container that was ended by SIGKILL.
const killed = 128 + int(syscall.SIGKILL)

// consoleEnd is the console's last lines, or the error of reading them.
func (g *Guest) consoleEnd(ctx context.Context, n int) string {
	console, err := Log(ctx, g.docker, g.container, time.Time{}, false)
	if err != nil {
		return err.Error()
	}
	return LastLines(console, n)
}

// LastLines are the last n lines of a text.
func LastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Ready waits until the guest of a started container runs commands. The error has the end of its
// console if the guest runs none within bound, or ends.
func (g *Guest) Ready(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wait := g.docker.ContainerWait(ctx, g.container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	go func() {
		select {
		case <-wait.Result:
			cancel(errEnded)
		case err := <-wait.Error:
			cancel(err)
		}
	}()
	err := await.Until(ctx, "guest "+g.name+" to run a command", 100*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			status, err := g.run(ctx, channel.Request{Exec: []string{"true"}}, nil, io.Discard, io.Discard)
			return err == nil && status.Status == 0, fmt.Sprintf("%+v", status), err
		})
	why := ""
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) == errEnded:
		why = "it ended"
	case errors.As(err, new(*await.TimeoutError)):
		why = fmt.Sprintf("it ran no command within %s", bound)
	default:
		return err
	}
	console := g.consoleEnd(context.WithoutCancel(ctx), 5)
	return status.Machine("guest %s did not boot: %s; its console ends with: %s", g.name, why, console)
}

// errEnded is the cause with which the end of the guest cancels a wait.
var errEnded = errors.New("the guest ended")

// Log is the output of a container since a time; the zero time selects all. A guest's container has the output
// of its kernel, of systemd and of the launcher, since the first power-on. A tty has one raw stream.
func Log(ctx context.Context, docker *client.Client, container string, since time.Time, tty bool) (string, error) {
	options := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true}
	if !since.IsZero() {
		options.Since = since.Format(time.RFC3339Nano)
	}
	var text bytes.Buffer
	stream, err := docker.ContainerLogs(ctx, container, options)
	if err == nil {
		defer stream.Close()
		if tty {
			_, err = io.Copy(&text, stream)
		} else {
			_, err = stdcopy.StdCopy(&text, &text, stream)
		}
	}
	if err != nil {
		return "", fmt.Errorf("reading the log of container %q: %w", container, err)
	}
	return text.String(), nil
}

// Path is the path at which the machine can dial the guest's unix socket path. Files have no such
// path: read them with Exec. A connection ends at once while nothing listens in the guest.
func (g *Guest) Path(ctx context.Context, path string) (string, error) {
	wrap := func(err error) error { return fmt.Errorf("on %s: reaching socket %s: %w", g.name, path, err) }
	conn, r, err := g.ask(ctx, channel.Request{Forward: path})
	if err != nil {
		return "", wrap(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var reply channel.Reply
	if err := channel.ReadLine(r, &reply); err != nil {
		return "", wrap(err)
	}
	if reply.Error != "" {
		return "", wrap(errors.New(reply.Error))
	}
	return filepath.Join(g.dir, reply.Socket), nil
}

// Wire sets sysctls, whose keys are patterns of paths below /proc/sys, and the default
// route, with one next hop for each router (ECMP). Without next hops it sets no route.
// It must be repeated after each power-on.
func (g *Guest) Wire(ctx context.Context, sysctls map[string]string, nextHops []netip.Addr) error {
	if _, err := g.ExecInput(ctx, strings.NewReader(wiring(sysctls, nextHops)), "sh", "-e"); err != nil {
		return fmt.Errorf("wiring %s: %w", g.name, err)
	}
	return nil
}

// wiring is Wire as a shell script, so that one command is enough.
func wiring(sysctls map[string]string, nextHops []netip.Addr) string {
	var script strings.Builder
	for _, pattern := range slices.Sorted(maps.Keys(sysctls)) {
		fmt.Fprintf(&script, "for f in /proc/sys/%s; do echo %s >\"$f\"; done\n", pattern, shellescape.Quote(sysctls[pattern]))
	}
	if len(nextHops) > 0 {
		script.WriteString("ip route replace default")
		for _, hop := range nextHops {
			fmt.Fprintf(&script, " nexthop via %s", hop)
		}
		script.WriteString("\n")
	}
	return script.String()
}
