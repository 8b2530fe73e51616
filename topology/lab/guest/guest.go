package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/guest/channel"
	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
)

// Image names the image of guests with a kernel, one of topology.Kernels.
func Image(kernel string) string { return "relapse.dev/guest:" + kernel }

// runDir is where the launcher keeps its sockets in the container.
const runDir = "/run/relapse"

// Options say how a guest is run.
type Options struct {
	// Image is the guest's image as Docker knows it.
	Image string
	// Hostname is the container's host name and the guest's.
	Hostname string
	// Dir is a folder of the machine for the channel's sockets. It is the
	// guest's alone.
	Dir string
	// Binds are mounted into the container (host:container:ro), and so are
	// part of the guest's tree. The guest cannot write to them.
	Binds       []string
	Accelerator Accelerator
	// CPUs is how many the guest has, but for UML, which has one.
	CPUs int
	// Seat is another number for each guest that runs at the same time: under
	// UML each is kept on one of the machine's CPUs, the next one for the next.
	Seat int
	// Memory is the guest's, in MiB. The container gets more: see Overhead.
	Memory int
}

// Overhead is the memory that a guest's container may take beyond the
// guest's own, in MiB. Under TCG QEMU takes 256 for translated code (see
// package launch) and some 170 for its TLBs and heap, with kube-proxy among 300
// endpoints on the guest: 1190 MiB in all after ten minutes. The rest is page
// cache, of the disk and the image, and room for TLBs of the whole memory.
const Overhead = 768

// Container is the container of a guest, for a member of a lab: the caller
// adds labels and networks, which must be attached before it starts. The
// container is not privileged.
func Container(o Options) (*container.Config, *container.HostConfig) {
	config := &container.Config{
		Image:    o.Image,
		Hostname: o.Hostname,
		Cmd: []string{
			"--accelerator", string(o.Accelerator), "--dir", runDir,
			"--cpus", strconv.Itoa(o.CPUs), "--memory", strconv.Itoa(o.Memory),
			"--seat", strconv.Itoa(o.Seat),
		},
		StopSignal: "SIGTERM", // the node image's is for systemd
	}
	host := &container.HostConfig{
		CapAdd: []string{"NET_ADMIN"}, // bridge and tap
		Binds:  append([]string{o.Dir + ":" + runDir}, o.Binds...),
		Sysctls: map[string]string{ // the container takes no part in the network
			"net.ipv6.conf.all.disable_ipv6":     "1",
			"net.ipv6.conf.default.disable_ipv6": "1",
		},
		Resources: container.Resources{
			Devices: []container.DeviceMapping{device("/dev/net/tun")},
			Memory:  int64(o.Memory+Overhead) << 20,
			// Half of another container's share of a CPU that both want: beside
			// several guests that are busy a write to the API server took half a second.
			CPUShares: 512,
		},
	}
	give(host, o.Accelerator, o.Memory)
	return config, host
}

const kvmDevice = "/dev/kvm"

// give adds to a container what an accelerator needs of it, for a guest with so
// many MiB of memory.
func give(host *container.HostConfig, a Accelerator, memory int) {
	switch a {
	case KVM:
		host.Devices = append(host.Devices, device(kvmDevice))
	case UML:
		// Docker's own tmpfs, /dev/shm, is too small, and nothing can be
		// executed in it.
		host.Tmpfs = map[string]string{launch.UMLMemory: fmt.Sprintf("rw,exec,nosuid,nodev,mode=0700,size=%dm", memory+umlExtra)}
	}
}

// umlExtra is what UML keeps beside the guest's memory, in MiB: its control
// socket and pages of its own.
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

// Open returns the handle of the guest in a container that was made with dir
// as its Options.Dir. The name is for errors.
func Open(docker *client.Client, container, name, dir string) *Guest {
	return &Guest{name: name, dir: dir, container: container, docker: docker}
}

// ExitError is a command that ended with another status than 0.
type ExitError struct {
	Guest   string
	Command []string
	Status  int
	Output  string // standard output and standard error, as they came
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("on %s: %s: exit status %d: %s",
		e.Guest, shellescape.QuoteCommand(e.Command), e.Status, strings.TrimSpace(e.Output))
}

// ErrNotAnswering says that the guest's agent does not answer: the guest is
// still booting, is switched off, or has failed. Its console, which is the
// container's log, tells which.
var ErrNotAnswering = errors.New("the guest's agent does not answer")

// Exec runs a command in the guest, as root, and returns its standard output.
// A command that ends with another status than 0 is an *ExitError. When ctx
// ends, the command and what it started are killed.
func (g *Guest) Exec(ctx context.Context, command ...string) (string, error) {
	return g.ExecInput(ctx, nil, command...)
}

// ExecInput is Exec with a standard input; a nil input is none.
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
		return stdout.String(), fmt.Errorf("on %s: %s: %w", g.name, shellescape.QuoteCommand(command), err)
	}
	if status.Status != 0 {
		return stdout.String(), &ExitError{Guest: g.name, Command: command, Status: status.Status, Output: output.String()}
	}
	return stdout.String(), nil
}

// run runs a command to its end.
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
	for {
		kind, content, err := channel.ReadFrame(r)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return status, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return status, ErrNotAnswering
		default:
			return status, err
		}
		switch kind {
		case channel.Stdout:
			_, err = stdout.Write(content)
		case channel.Stderr:
			_, err = stderr.Write(content)
		case channel.Exit:
			return status, json.Unmarshal(content, &status)
		}
		if err != nil {
			return status, err
		}
	}
}

// send sends a command's standard input and then the mark of its end. It
// returns no error: if the input is cut short, the command's own exit status
// shows it.
func send(conn io.Writer, input io.Reader) {
	if input != nil {
		_, _ = io.Copy(inputWriter{conn}, input)
	}
	_ = channel.WriteFrame(conn, channel.Input, nil)
}

type inputWriter struct{ w io.Writer }

func (i inputWriter) Write(p []byte) (int, error) {
	if len(p) == 0 { // an empty frame would be the input's end
		return 0, nil
	}
	if err := channel.WriteFrame(i.w, channel.Input, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ask connects to the launcher and sends a request.
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

// whyNot replaces err, an ErrNotAnswering, by one that says how the guest
// ended, if it does not run any more.
func (g *Guest) whyNot(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	info, inspectErr := g.docker.ContainerInspect(ctx, g.container)
	switch {
	case errdefs.IsNotFound(inspectErr):
		return fmt.Errorf("%w: its container is gone", ErrNotAnswering)
	case inspectErr != nil || info.State == nil || info.State.Running:
		return err
	case info.State.Status == "created":
		return fmt.Errorf("%w: it was never powered on", ErrNotAnswering)
	case info.State.ExitCode == killed && !info.State.OOMKilled:
		return fmt.Errorf("%w: its power is cut", ErrNotAnswering)
	}
	return fmt.Errorf("%w: it ended at %s with exit status %d: %s",
		ErrNotAnswering, info.State.FinishedAt, info.State.ExitCode, g.consoleEnd(ctx, 1))
}

// killed is the exit status of a container that SIGKILL has ended.
const killed = 128 + int(syscall.SIGKILL)

// consoleEnd is the console's last lines, as far as they can be read.
func (g *Guest) consoleEnd(ctx context.Context, n int) string {
	console, err := g.Console(ctx)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(console), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// BootError says that a guest did not come up.
type BootError struct {
	Guest   string
	Why     string
	Console string // its last lines
}

func (e *BootError) Error() string {
	return fmt.Sprintf("guest %s did not come up: %s; its console ends with: %s", e.Guest, e.Why, e.Console)
}

// Ready waits until the guest, whose container has been started, runs
// commands, for bound at most. A guest that does not, or that ends meanwhile,
// is a *BootError.
func (g *Guest) Ready(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended, failed := g.docker.ContainerWait(ctx, g.container, container.WaitConditionNotRunning)
	go func() {
		select {
		case <-ended:
			cancel(errEnded)
		case err := <-failed:
			cancel(err)
		}
	}()
	err := await.Until(ctx, "guest "+g.name+" to run a command", 100*time.Millisecond, bound,
		func(ctx context.Context) (bool, string, error) {
			status, err := g.run(ctx, channel.Request{Exec: []string{"true"}}, nil, io.Discard, io.Discard)
			return err == nil && status.Status == 0, fmt.Sprintf("%+v", status), err
		})
	var late *await.TimeoutError
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) == errEnded:
		return &BootError{Guest: g.name, Why: "it ended", Console: g.consoleEnd(context.WithoutCancel(ctx), 5)}
	case errors.As(err, &late):
		return &BootError{Guest: g.name, Why: fmt.Sprintf("it ran no command within %s", bound), Console: g.consoleEnd(ctx, 5)}
	}
	return err
}

// errEnded is the cause of a wait's end when the guest ends.
var errEnded = errors.New("the guest ended")

// Console returns what the guest's kernel and systemd printed since it was
// first powered on, and what the launcher had to say.
func (g *Guest) Console(ctx context.Context) (string, error) {
	stream, err := g.docker.ContainerLogs(ctx, g.container, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return "", fmt.Errorf("reading the console of guest %s: %w", g.name, err)
	}
	defer stream.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(&text, &text, stream); err != nil {
		return "", fmt.Errorf("reading the console of guest %s: %w", g.name, err)
	}
	return text.String(), nil
}

// Path is where the machine can dial the unix socket that has this path in
// the guest. Files have no such path: read them with Exec. A connection ends
// at once while nothing listens in the guest.
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

// Wire sets sysctls, whose keys are patterns of paths below /proc/sys, and
// the default route, with one next hop for each router (ECMP); none leaves
// the guest without. A guest whose power was cut needs it anew.
func (g *Guest) Wire(ctx context.Context, sysctls map[string]string, nextHops []netip.Addr) error {
	if _, err := g.ExecInput(ctx, strings.NewReader(wiring(sysctls, nextHops)), "sh", "-e"); err != nil {
		return fmt.Errorf("wiring %s: %w", g.name, err)
	}
	return nil
}

// wiring is Wire as a shell script: one command through the channel in place
// of dozens.
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
