package kindlab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/containerlab"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/guest"
	"github.com/relapse-dev/relapse/topology/lab/router"
	"github.com/relapse-dev/relapse/topology/status"
)

// Images of the lab's own containers.
const (
	registryImage = "relapse.dev/registry:2.8"
	hostImage     = "relapse.dev/host:dev"
)

var routerImages = map[topology.RouterKind]string{
	topology.GoBGP: "relapse.dev/tor:dev",
	topology.FRR:   "relapse.dev/frr:10.3",
	topology.BIRD:  "relapse.dev/bird:2.17",
}

// RouterImage is the image of a router of a kind; empty means GoBGP.
func RouterImage(kind topology.RouterKind) string { return routerImages[cmp.Or(kind, topology.GoBGP)] }

func kindOf(r topology.Router) topology.RouterKind { return cmp.Or(r.Kind, topology.GoBGP) }

// runDir is the folder of the sockets in a router's, host's or guest's container. It
// is a folder of the machine under StateDir.
const runDir = "/run/relapse"

const registryPort = 5000

// Lab is a topology that is running.
type Lab struct {
	Topology topology.Topology
	// Clusters are the running clusters, in the order of the topology.
	Clusters []*Cluster

	// foreign is the state of an adopted lab; nil for others.
	foreign *foreign
	docker  *client.Client
	options Options
	log     *slog.Logger
	unlock  func()
	// choosing is held while an accelerator is chosen, so that only one is probed.
	choosing sync.Mutex
}

// Host is a machine of a lab outside every cluster.
type Host struct{ member }

// Router is a BGP router of a lab.
type Router struct {
	member
	RouterControl
}

// ImagesOf returns the images that a topology needs, without its workloads' images.
func ImagesOf(t topology.Topology) []string {
	refs := containerImages(t)
	if len(t.Clusters) > 0 {
		refs = append(refs, controlPlaneImages...)
	}
	return refs
}

func containerImages(t topology.Topology) []string {
	refs := []string{registryImage}
	if len(t.Clusters) > 0 {
		refs = append(refs, nodeImage)
	}
	refs = append(refs, guestImages(t)...)
	others := each.Of(t.Routers, func(r topology.Router) string { return RouterImage(r.Kind) })
	for _, ref := range append(others, each.Of(t.Hosts, hostImageOf)...) {
		if !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func hostImageOf(h topology.Host) string { return cmp.Or(h.Image, hostImage) }

// Attach takes over a lab that an earlier run left running, and isolates it anew: that run may have been
// of another release.
func Attach(ctx context.Context, docker *client.Client, t topology.Topology, o Options) (*Lab, error) {
	l, err := hold(docker, t, o)
	if err != nil {
		return nil, err
	}
	if err := l.attach(ctx); err != nil {
		l.Release()
		return nil, err
	}
	return l, nil
}

func hold(docker *client.Client, t topology.Topology, o Options) (*Lab, error) {
	if t.Dual && tableFamily() != nftables.TableFamilyINet {
		return nil, status.Machine("a lab of two families needs IPv6, and this machine's kernel has none: run with --family ipv4")
	}
	unlock, _, err := lock(t.Name) // the caller runs Down before, which cleans up after a kill
	if err != nil {
		return nil, err
	}
	l := &Lab{Topology: t, docker: docker, options: o, unlock: unlock}
	l.log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return l, nil
}

// Release unlocks the lab for other processes. The lab keeps running.
func (l *Lab) Release() { l.unlock() }

func (l *Lab) attach(ctx context.Context) error {
	for _, m := range l.Topology.Members() {
		handle := l.member(m.Name)
		has, err := handle.Exists(ctx)
		if err != nil {
			return err
		}
		if !has {
			return fmt.Errorf("lab %q has no container %q: take it down, or run without --reuse", l.Topology.Name, handle.container)
		}
	}
	if err := CheckKept(ctx, l.docker, l.Topology); err != nil {
		return err
	}
	if err := isolate(l.Topology.Name, bridgesOf(l.Topology), tableFamily()); err != nil {
		return err
	}
	for _, c := range l.Topology.Clusters {
		if err := l.closeControlPlane(ctx, l.Node(c.Nodes[0].Name)); err != nil {
			return err
		}
	}
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	if err := l.checkSource(); err != nil {
		return err
	}
	// The run that brought the lab up may have needed other images.
	if err := l.serve(ctx); err != nil {
		return err
	}
	for _, c := range l.Topology.Clusters {
		running, err := l.openCluster(c)
		if err != nil {
			return err
		}
		l.Clusters = append(l.Clusters, running)
	}
	return nil
}

// Exists reports whether a lab has containers.
func Exists(ctx context.Context, docker *client.Client, lab string) (bool, error) {
	found, err := containersOf(ctx, docker, lab)
	return len(found) > 0, err
}

func (l *Lab) makeStateDir() error {
	dir := stateDir(l.Topology.Name)
	if err := recordSysctls(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.mirrorsDir(), "_default"), 0o700); err != nil {
		return fmt.Errorf("creating the state folder of lab %q: %w", l.Topology.Name, err)
	}
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	if err := os.WriteFile(l.sourceFile(), []byte(l.source()), 0o600); err != nil {
		return fmt.Errorf("recording the image source of lab %q: %w", l.Topology.Name, err)
	}
	if err := l.writeMirrors(); err != nil {
		return fmt.Errorf("writing the registry mirrors of lab %q: %w", l.Topology.Name, err)
	}
	return os.Chmod(dir, 0o700)
}

func mirrorsDir(lab string) string { return filepath.Join(stateDir(lab), "certs.d") }

func (l *Lab) mirrorsDir() string { return mirrorsDir(l.Topology.Name) }

func (l *Lab) mirrorsBind() string { return l.mirrorsDir() + ":/etc/containerd/certs.d:ro" }

func (l *Lab) load(ctx context.Context, refs []string) (map[string]string, error) {
	loaded := map[string]string{}
	err := l.options.step("images into Docker", func() error {
		var mu sync.Mutex
		load, ctx := errgroup.WithContext(ctx)
		for _, ref := range refs {
			load.Go(func() error {
				image, err := l.options.Images.LoadDocker(ctx, l.docker, ref)
				mu.Lock()
				defer mu.Unlock()
				loaded[ref] = image
				return err
			})
		}
		return load.Wait()
	})
	return loaded, err
}

// registryAddr is the address of the lab's registry (number 0) or of one of its caches: on the first
// cluster's network the highest that no member has, and the next ones below it.
func (l *Lab) registryAddr(number int) netip.AddrPort {
	name := l.Topology.Clusters[0].Nodes[0].Links[0].Network
	network, _ := l.Topology.Network(name)
	used := map[netip.Addr]bool{}
	for _, m := range l.Topology.MembersOn(name) {
		link, _ := m.LinkOn(name)
		used[link.Address] = true
	}
	addr := network.Broadcast().Prev()
	for ; used[addr] || number > 0; addr = addr.Prev() {
		if !used[addr] {
			number--
		}
	}
	return netip.AddrPortFrom(addr, registryPort)
}

func (l *Lab) startRoutersAndHosts(ctx context.Context, images map[string]string) error {
	start, ctx := errgroup.WithContext(ctx)
	for _, r := range l.Topology.Routers {
		start.Go(func() error { return l.startRouter(ctx, r, images[RouterImage(r.Kind)]) })
	}
	for _, h := range l.Topology.Hosts {
		start.Go(func() error {
			if err := l.startMember(ctx, h.Name, h.Links, []string{"NET_ADMIN"}, l.agent(images[hostImageOf(h)])); err != nil {
				return err
			}
			return l.wireMember(ctx, h.Name)
		})
	}
	return start.Wait()
}

// AgentSocket is the probe agent's socket in a host's file system.
const AgentSocket = runDir + "/agent.sock"

func (l *Lab) agent(image string) *container.Config {
	c := &container.Config{Image: image, Entrypoint: []string{"probe", "agent", "--socket", AgentSocket}}
	if l.Topology.Dual {
		c.Entrypoint = append(c.Entrypoint, "--ipv6")
	}
	return c
}

func (l *Lab) nodesOn(network string) []netip.Addr {
	var all []netip.Addr
	for _, n := range l.Topology.Nodes() {
		if address, there := l.Topology.AddressOn(n.Name, network); there {
			all = append(all, address)
		}
	}
	return all
}

func (l *Lab) startRouter(ctx context.Context, r topology.Router, image string) error {
	config := router.Config{Kind: r.Kind, AS: r.ASN, RouterID: r.ID, Sockets: runDir, Dual: l.Topology.Dual}
	config.Listen = each.Of(r.Links, func(l topology.Link) netip.Addr { return l.Address })
	for _, p := range r.Peers {
		network, _ := l.Topology.Network(p.Network)
		peers := router.Peers{Prefix: network.Subnet, AS: p.ASN, GracefulRestart: p.GracefulRestart, BFD: p.BFD}
		if p.BFD != (topology.BFD{}) {
			peers.BFDPeers = l.nodesOn(p.Network)
		}
		config.Peers = append(config.Peers, peers)
		if l.Topology.Dual { // a session of either family carries both
			peers.Prefix, peers.BFDPeers = topology.IPv6.Prefix(peers.Prefix), nil
			config.Peers = append(config.Peers, peers)
		}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("writing the configuration of router %q: %w", r.Name, err)
	}
	dir, err := l.makeRunFolder(r.Name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "tor.json"), text, 0o600); err != nil {
		return fmt.Errorf("writing the configuration of router %q: %w", r.Name, err)
	}
	capabilities := []string{"NET_ADMIN"}
	if r.Kind == topology.FRR {
		// Its daemons ask for it when they start, for namespaces, and end without it.
		capabilities = append(capabilities, "SYS_ADMIN")
	}
	err = l.startMember(ctx, r.Name, r.Links, capabilities, &container.Config{
		Image: image, Cmd: []string{"--config", runDir + "/tor.json"}, Labels: map[string]string{labelRouter: string(kindOf(r))},
	})
	if err != nil {
		return err
	}
	handle, err := router.Open(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	err = await.Until(ctx, "router "+r.Name+" to accept sessions", 50*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			status, err := handle.Status(ctx)
			return status.Ready && status.Error == "", "not ready: " + status.Error, err
		})
	if err != nil && ctx.Err() == nil {
		log, logErr := l.member(r.Name).Logs(ctx)
		return errors.Join(fmt.Errorf("%w; its log ends with: %s", err, guest.LastLines(log, 5)), logErr)
	}
	return err
}

func (l *Lab) runFolder(member string) string {
	return filepath.Join(stateDir(l.Topology.Name), member)
}

func (l *Lab) makeRunFolder(member string) (string, error) {
	dir := l.runFolder(member)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating the run folder of %s: %w", member, err)
	}
	return dir, nil
}

func (l *Lab) startMember(ctx context.Context, name string, links []topology.Link, capabilities []string, config *container.Config) error {
	dir, err := l.makeRunFolder(name)
	if err != nil {
		return err
	}
	config.Hostname = name
	return l.member(name).run(ctx, links, config, &container.HostConfig{
		CapAdd: capabilities, Sysctls: containerlab.Forwarding, Binds: []string{dir + ":" + runDir},
	})
}

func (l *Lab) wireMember(ctx context.Context, name string) error {
	declared, ok := l.Topology.Member(name)
	if !ok {
		return fmt.Errorf("lab %q has no member %q", l.Topology.Name, name)
	}
	return l.member(name).wire(ctx, l.Topology.NextHops(declared))
}

func (l *Lab) member(name string) *member {
	m := &member{name: name, lab: l.Topology.Name, container: containerName(l.Topology.Name, name), docker: l.docker}
	if l.Topology.Dual {
		declared, _ := l.Topology.Member(name)
		m.dual = declared.Links
	}
	for _, c := range l.Topology.Clusters {
		for _, n := range c.Nodes {
			if n.Name != name {
				continue
			}
			m.container = l.nodeContainer(c, n)
			if n.Kernel != "" {
				m.guest = guest.Open(l.docker, m.container, name, l.runFolder(name))
			}
		}
	}
	if l.foreign != nil && !slices.ContainsFunc(l.Topology.Hosts, func(h topology.Host) bool { return h.Name == name }) {
		m.container = cmp.Or(l.foreign.Containers[name], m.container)
	}
	return m
}

// Node is the handle of a declared node, whether it runs or not.
func (l *Lab) Node(name string) *Node { return &Node{*l.member(name), l} }

// Router is the handle of a declared router. It must be closed.
func (l *Lab) Router(name string) (*Router, error) {
	if l.foreign != nil {
		return &Router{*l.member(name), l.foreign.Routers[name]}, nil
	}
	client, err := router.Open(l.runFolder(name))
	if err != nil {
		return nil, err
	}
	return &Router{*l.member(name), client}, nil
}

// Host is the handle of a declared host.
func (l *Lab) Host(name string) *Host { return &Host{*l.member(name)} }

// Down removes the lab and releases it. An adopted lab is restored.
func (l *Lab) Down(ctx context.Context) error {
	var err error
	if l.foreign != nil {
		err = l.restore(ctx)
	}
	err = errors.Join(err, down(ctx, l.docker, l.Topology.Name, l.options.step))
	l.Release()
	return err
}

// Down removes everything of a lab, which it finds by labels alone. It is no error
// if there is nothing. The error is a *HeldError if a running process holds the lab.
func Down(ctx context.Context, docker *client.Client, lab string) error {
	unlock, killed, err := lock(lab)
	if err != nil {
		return err
	}
	defer unlock()
	err = down(ctx, docker, lab, Options{}.step)
	if err == nil && killed {
		err = downAfterKill(ctx, docker, lab)
	}
	return err
}

func down(ctx context.Context, docker *client.Client, lab string, step func(name string, do func() error) error) error {
	killStrays(lab)
	err := errors.Join(
		step("containers are removed", func() error { return removeContainers(ctx, docker, lab) }),
		step("networks are removed", func() error { return removeNetworks(ctx, docker, lab) }),
	)
	if err != nil { // what is left stays isolated, and is found again
		return err
	}
	return step("rules and files are removed", func() error { return errors.Join(removeTable(lab), removeStateDir(lab)) })
}

func removeStateDir(lab string) error {
	if err := os.RemoveAll(stateDir(lab)); err != nil {
		return fmt.Errorf("removing the state folder of lab %q: %w", lab, err)
	}
	return restoreSysctls()
}

// Logs returns the logs of the lab's containers and of the pods on its nodes, by name, except the logs of
// the nodes in without. Logs of containers and services begin at since; the zero time selects all. The
// error names the logs that could not be read.
func (l *Lab) Logs(ctx context.Context, since time.Time, without ...string) (map[string]string, error) {
	var mu sync.Mutex
	logs := map[string]string{}
	var errs []error
	keep := func(name, text string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
			return
		}
		logs[name] = text
	}
	var all sync.WaitGroup
	if len(l.Topology.Clusters) > 0 {
		for _, r := range append(slices.Collect(maps.Values(l.caches())), l.Registry()) {
			all.Go(func() {
				text, err := r.logs(ctx, since)
				keep(r.name, text, err)
			})
		}
	}
	for _, m := range l.Topology.Members() {
		if slices.Contains(without, m.Name) {
			continue
		}
		handle := l.member(m.Name)
		all.Go(func() {
			if exists, err := handle.Exists(ctx); !exists && err == nil {
				return // a fault removed it
			}
			text, err := handle.logs(ctx, since)
			if m.Kind != topology.KindNode {
				keep(m.Name, text, err)
				return
			}
			keep(m.Name+"-console", text, err) // can be read even if the node does not run
			text, err = handle.Exec(ctx, "sh", "-c", `find /var/log/pods -name '*.log' -exec tail -v -n +1 {} +`)
			keep(m.Name+"-pods", text, err)
			text, err = handle.Exec(ctx, "journalctl", "--no-pager", "-b", "-u", "kubelet", "-u", "containerd",
				fmt.Sprintf("--since=@%d", max(0, since.Unix())))
			keep(m.Name+"-journal", text, err)
		})
	}
	all.Wait()
	if i := slices.IndexFunc(errs, client.IsErrConnectionFailed); i >= 0 {
		return logs, errs[i] // without Docker all fail for the same reason
	}
	return logs, errors.Join(errs...)
}
