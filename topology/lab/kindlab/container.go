package kindlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/guest"
)

// Labels of the lab's containers and networks.
const (
	labelLab    = "dev.relapse.lab"
	labelMember = "dev.relapse.member"
	labelRouter = "dev.relapse.router"
	// labelDual is "true" on the networks of a lab of two families.
	labelDual = "dev.relapse.dual"
	// kind's own label, the only one of the containers that kind makes.
	labelKindCluster = "io.x-k8s.kind.cluster"
)

// member is one container of a lab. Node, Router and Host are members.
type member struct {
	name      string // in the topology
	lab       string
	container string // name of the container
	docker    *client.Client
	// guest is the guest in the container; nil without one.
	guest *guest.Guest
	// dual are the links that have addresses of IPv6, too; none in a lab of IPv4.
	dual []topology.Link
}

// Name is the member's name in the topology.
func (m *member) Name() string { return m.name }

// Container is the name of the member's container.
func (m *member) Container() string { return m.container }

// Exec runs a command on the member and returns its standard output. The error
// is a *guest.ExitError if the exit status is not 0.
func (m *member) Exec(ctx context.Context, command ...string) (string, error) {
	return m.ExecInput(ctx, nil, command...)
}

// ExecInput is Exec with a standard input, which may be nil.
func (m *member) ExecInput(ctx context.Context, input io.Reader, command ...string) (string, error) {
	if m.guest != nil {
		return m.guest.ExecInput(ctx, input, command...)
	}
	wrap := func(err error) error { return fmt.Errorf("on %s: %s: %w", m.name, guest.Quote(command), err) }
	exec, err := m.docker.ExecCreate(ctx, m.container, client.ExecCreateOptions{
		Cmd: command, AttachStdin: input != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return "", wrap(err)
	}
	stream, err := m.docker.ExecAttach(ctx, exec.ID, client.ExecAttachOptions{})
	if err != nil {
		return "", wrap(err)
	}
	defer stream.Close()
	// A read from the hijacked connection ignores ctx.
	stop := context.AfterFunc(ctx, stream.Close)
	defer stop()
	if input != nil {
		go func() {
			_, _ = io.Copy(stream.Conn, input) // the command's status shows a short input
			_ = stream.CloseWrite()
		}()
	}
	var stdout, output bytes.Buffer
	if _, err := stdcopy.StdCopy(io.MultiWriter(&stdout, &output), &output, stream.Reader); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", wrap(err)
	}
	status, err := m.docker.ExecInspect(ctx, exec.ID, client.ExecInspectOptions{})
	if err != nil {
		return "", wrap(err)
	}
	if status.ExitCode != 0 {
		return stdout.String(), &guest.ExitError{Member: m.name, Command: command, Status: status.ExitCode, Output: output.String()}
	}
	return stdout.String(), nil
}

func (m *member) inspect(ctx context.Context) (container.InspectResponse, error) {
	answer, err := m.docker.ContainerInspect(ctx, m.container, client.ContainerInspectOptions{})
	if err != nil {
		err = fmt.Errorf("inspecting container %q: %w", m.container, err)
	}
	return answer.Container, err
}

// PID is the process ID of the member's init in the machine's PID namespace. It changes when the
// member is stopped and started. A guest, which has its own kernel, has none: that is an error.
func (m *member) PID(ctx context.Context) (int, error) {
	if m.guest != nil {
		return 0, fmt.Errorf("%s is a guest with its own kernel: "+
			"the machine cannot access its processes and namespaces; run commands on it", m.name)
	}
	info, err := m.inspect(ctx)
	if err != nil {
		return 0, err
	}
	if info.State == nil || info.State.Pid == 0 {
		return 0, fmt.Errorf("container %q is not running", m.container)
	}
	return info.State.Pid, nil
}

// Netns is the path of the member's network namespace. It is an error for a guest.
func (m *member) Netns(ctx context.Context) (string, error) {
	pid, err := m.PID(ctx)
	if err != nil {
		return "", err
	}
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	// Not /proc/self: the main thread does not end, and stays where InNetns has taken it.
	theirs, err := os.Stat(path)
	own, err2 := os.Stat("/proc/thread-self/ns/net")
	if err = errors.Join(err, err2); err != nil || os.SameFile(theirs, own) {
		return "", errors.Join(err, fmt.Errorf("process %d of container %q is not in a network namespace of its own as this process sees it: "+
			"Docker runs in another PID namespace than relapse (docker run --pid host), or the container has just ended", pid, m.container))
	}
	return path, nil
}

// Path translates a path of the member's file system into one of the machine. A unix socket at that
// path can be dialled, because it belongs to the file system and not to the network namespace. For
// a guest only sockets have such a path; its files can be read with Exec.
func (m *member) Path(ctx context.Context, path string) (string, error) {
	if m.guest != nil {
		return m.guest.Path(ctx, path)
	}
	pid, err := m.PID(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/root%s", pid, path), nil
}

// Stop cuts the member's power: its processes are killed.
func (m *member) Stop(ctx context.Context) error {
	if _, err := m.docker.ContainerKill(ctx, m.container, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		return fmt.Errorf("cutting the power of %s: %w", m.name, err)
	}
	return nil
}

// Remove removes the member's container and its volumes, running or not.
func (m *member) Remove(ctx context.Context) error {
	endpoints.Lock()
	defer endpoints.Unlock()
	return m.remove(ctx)
}

func (m *member) remove(ctx context.Context) error {
	defer m.keepThawed(ctx)()
	_, err := m.docker.ContainerRemove(ctx, m.container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("removing container %q: %w", m.container, err)
	}
	return nil
}

// keepThawed thaws frozen pods of the member, each second until stop is called. A runc that is killed
// while it changes a pod's devices leaves the pod frozen, and under cgroup v1 a frozen process does not
// end by SIGKILL: the container could never be removed.
func (m *member) keepThawed(ctx context.Context) (stop func()) {
	info, err := m.inspect(ctx)
	if err != nil { // it is gone
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				thaw("/sys/fs/cgroup/freezer", info.ID)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// thaw thaws the frozen cgroups of a container below a folder. It finds them by the container's ID in their path,
// because an ending process leaves its cgroup. Cgroup v2 has no such folder, and a cgroup may go meanwhile.
func thaw(folder, id string) {
	_ = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "freezer.state" && strings.Contains(path, id) {
			if state, _ := os.ReadFile(path); strings.TrimSpace(string(state)) == "FROZEN" {
				_ = os.WriteFile(path, []byte("THAWED"), 0)
			}
		}
		return nil
	})
}

// Logs returns the output of the member's main process; for a guest its console.
func (m *member) Logs(ctx context.Context) (string, error) { return m.logs(ctx, time.Time{}) }

func (m *member) logs(ctx context.Context, since time.Time) (string, error) {
	info, err := m.inspect(ctx)
	if err != nil {
		return "", err
	}
	return guest.Log(ctx, m.docker, m.container, since, info.Config.Tty)
}

func (m *member) run(ctx context.Context, links []topology.Link, config *container.Config, host *container.HostConfig) error {
	if err := m.create(ctx, links, config, host); err != nil {
		return err
	}
	return m.start(ctx)
}

// endpoints serialises the changes of containers' endpoints on networks. Before 28.1 Docker counts
// a network's endpoints, and concurrent changes can lose an update of the count (moby/moby#42119).
// A network whose count is too high cannot be removed until Docker is restarted. Stop does not take
// the lock, because Docker removes the endpoints some time after it has returned.
var endpoints sync.Mutex

const startsWithin = 2 * time.Minute

// start starts the member's container. It ignores the end of ctx once Docker has
// begun, because Docker finishes the start anyway.
func (m *member) start(ctx context.Context) error {
	endpoints.Lock()
	defer endpoints.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("starting container %q: %w", m.container, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startsWithin)
	defer cancel()
	if _, err := m.docker.ContainerStart(ctx, m.container, client.ContainerStartOptions{}); err != nil {
		return fmt.Errorf("starting container %q: %w", m.container, err)
	}
	return m.addIPv6(ctx)
}

// nameServer is asked for names that a lab does not know. Nobody has the address (RFC 5737), and a lab's
// routers have no route to it. Without it Docker would ask the machine's name servers: from 28 on dockerd
// itself does, so that names of a lab would leave the machine.
var nameServer = netip.MustParseAddr("192.0.2.53")

func (m *member) createIn(
	ctx context.Context, mode string, endpoints *network.NetworkingConfig, config *container.Config, host *container.HostConfig,
) error {
	if config.Labels == nil {
		config.Labels = map[string]string{}
	}
	config.Labels[labelLab], config.Labels[labelMember] = m.lab, m.name
	if host.NetworkMode = container.NetworkMode(mode); !host.NetworkMode.IsContainer() { // otherwise it has the other container's name servers
		host.DNS = []netip.Addr{nameServer}
	}
	host.LogConfig.Type = "json-file" // the machine's driver may not give logs back
	if len(host.SecurityOpt) == 0 {
		host.SecurityOpt = []string{"label=disable"} // SELinux would hide what is mounted
	}
	options := client.ContainerCreateOptions{Name: m.container, Config: config, HostConfig: host, NetworkingConfig: endpoints}
	if _, err := m.docker.ContainerCreate(ctx, options); err != nil {
		return fmt.Errorf("creating container %q: %w", m.container, err)
	}
	return nil
}

func (m *member) create(ctx context.Context, links []topology.Link, config *container.Config, host *container.HostConfig) error {
	first, rest := links[0], links[1:]
	on := networkName(m.lab, first.Network)
	endpoints := map[string]*network.EndpointSettings{on: endpoint(first)}
	if err := m.createIn(ctx, on, &network.NetworkingConfig{EndpointsConfig: endpoints}, config, host); err != nil {
		return err
	}
	for _, link := range rest { // engines before 25.0 take one endpoint at creation
		options := client.NetworkConnectOptions{Container: m.container, EndpointConfig: endpoint(link)}
		if _, err := m.docker.NetworkConnect(ctx, networkName(m.lab, link.Network), options); err != nil {
			return fmt.Errorf("creating container %q: %w", m.container, err)
		}
	}
	return nil
}

func endpoint(link topology.Link) *network.EndpointSettings {
	return &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: link.Address}}
}

// Exists reports whether the member has a container, running or not.
func (m *member) Exists(ctx context.Context) (bool, error) {
	_, err := m.inspect(ctx)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
