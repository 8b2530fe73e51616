package kindlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Registry is the registry from which a lab's nodes pull all images, regardless of
// the host in an image's name.
type Registry struct {
	member
	// Addr is the address on which it listens.
	Addr netip.AddrPort
}

// Registry is the handle of the lab's registry. A lab without clusters has none.
func (l *Lab) Registry() *Registry {
	r := &Registry{member: *l.member("registry")}
	if l.foreign != nil {
		r.Addr = l.foreign.registry
	} else {
		r.Addr = l.registryAddr(0)
	}
	return r
}

// caches are the lab's pull-through caches by the vendor's host: a registry can be
// the cache of only one other. A lab without upstreams has none.
func (l *Lab) caches() map[string]*Registry {
	all := map[string]*Registry{}
	if len(l.Topology.Clusters) == 0 {
		return all
	}
	for i, host := range l.options.Upstreams.Hosts() {
		all[host] = &Registry{*l.member("cache-" + host), l.registryAddr(i + 1)}
	}
	return all
}

const ownHost = "relapse.dev"

// Ours reports whether an image is our own: no vendor publishes it.
func Ours(image string) bool { return strings.HasPrefix(image, ownHost+"/") }

// reachUpstreams checks that the vendors' registries answer, before the lab is built.
func (l *Lab) reachUpstreams(ctx context.Context) error {
	if len(l.options.Upstreams) == 0 {
		return nil
	}
	var hosts []string
	for _, image := range append(slices.Clone(l.options.Serve), controlPlaneImages...) {
		host, err := registry.HostOf(image)
		if err != nil {
			return err
		}
		if !Ours(image) && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return l.options.step("the vendors' registries answer", func() error { return l.options.Upstreams.Reach(ctx, hosts) })
}

// source is the source of a lab's images, the value of --images, as recorded in the lab's state folder.
func (l *Lab) source() string {
	if len(l.options.Upstreams) > 0 {
		return "upstream"
	}
	return "build"
}

func (l *Lab) sourceFile() string { return filepath.Join(stateDir(l.Topology.Name), "images") }

// checkSource rejects a running lab whose images are of another source than this
// run's: its report would name the wrong one.
func (l *Lab) checkSource() error {
	text, err := os.ReadFile(l.sourceFile())
	if err != nil {
		return fmt.Errorf("reading the image source of lab %q: %w", l.Topology.Name, err)
	}
	if was, now := string(text), l.source(); was != now {
		return fmt.Errorf("lab %q was brought up with --images=%s, not %s: take it down, or run without --reuse", l.Topology.Name, was, now)
	}
	return nil
}

// writeMirrors writes the mirror configuration of the nodes' containerd: for all
// hosts the lab's registry, then the cache of that host, if there is one.
func (l *Lab) writeMirrors() error {
	ours := l.Registry()
	mirrors := map[string][]*Registry{"_default": {ours}}
	for host, cache := range l.caches() {
		mirrors[host] = []*Registry{ours, cache}
	}
	for host, asked := range mirrors {
		text := fmt.Sprintf("server = \"http://%s\"\n", asked[len(asked)-1].Addr)
		for _, r := range asked {
			text += r.mirror()
		}
		dir := filepath.Join(l.mirrorsDir(), host)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) mirror() string {
	return fmt.Sprintf("\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.Addr)
}

// startRegistry starts the lab's registry and caches, and pushes the images that a
// control plane needs to start. A lab without clusters has no registry.
func (l *Lab) startRegistry(ctx context.Context, image string) error {
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	ours := l.Registry()
	start, startCtx := errgroup.WithContext(ctx)
	start.Go(func() error { return l.startOurs(startCtx, ours, image) })
	for host, cache := range l.caches() {
		start.Go(func() error { return l.startCache(startCtx, cache, image, host) })
	}
	if err := start.Wait(); err != nil {
		return err
	}
	return l.push(ctx, controlPlaneImages)
}

// startOurs starts the lab's registry. It reads blobs from the image cache: copying
// 1 GB for each lab would take seconds of CPU and disk time.
func (l *Lab) startOurs(ctx context.Context, r *Registry, image string) error {
	refs := slices.Clone(l.options.Serve)
	if l.foreign == nil {
		refs = append(refs, controlPlaneImages...)
	}
	blobs, files, err := l.options.Images.Blobs(ctx, l.pushed(refs))
	if err != nil {
		return err
	}
	linked, err := registry.Linked(files)
	if err != nil {
		return err
	}
	host := &container.HostConfig{Binds: []string{blobs + ":" + blobs + ":ro"}}
	if l.foreign != nil {
		err = r.createIn(ctx, l.foreign.network, nil, &container.Config{Image: image}, host)
	} else {
		err = r.create(ctx, []topology.Link{l.registryLink(r)}, &container.Config{Image: image}, host)
	}
	if err != nil {
		return err
	}
	// images/registry/config.yml names the folder.
	to := client.CopyToContainerOptions{DestinationPath: "/var/lib/registry", Content: bytes.NewReader(linked)}
	_, err = r.docker.CopyToContainer(ctx, r.container, to)
	if err != nil {
		return fmt.Errorf("linking the cache's blobs into %s: %w", r.name, err)
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if l.foreign != nil {
		if r.Addr, err = r.addressOn(ctx, l.foreign.network); err != nil {
			return err
		}
		l.foreign.registry = r.Addr
	}
	return r.answers(ctx)
}

func (r *Registry) addressOn(ctx context.Context, network string) (netip.AddrPort, error) {
	info, err := r.inspect(ctx)
	if err != nil {
		return netip.AddrPort{}, err
	}
	at := info.NetworkSettings.Networks[network]
	if at == nil || !at.IPAddress.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("container %q has no address on network %q", r.container, network)
	}
	return netip.AddrPortFrom(at.IPAddress, registryPort), nil
}

// serve adds the images of Options.Serve to the lab's registry. It copies images of
// upstreams, because a scenario moves their tags, which a cache cannot do.
func (l *Lab) serve(ctx context.Context) error {
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	if err := l.push(ctx, l.options.Serve); err != nil {
		return err
	}
	return l.copyServed(ctx, l.Registry())
}

func (l *Lab) pushed(refs []string) []string {
	if len(l.options.Upstreams) == 0 {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return !Ours(ref) })
}

func (l *Lab) push(ctx context.Context, refs []string) error {
	if refs = l.pushed(refs); len(refs) == 0 {
		return nil
	}
	if err := l.options.Images.Push(ctx, l.Registry().Addr.String(), refs); err != nil {
		return fmt.Errorf("filling the registry of lab %q: %w", l.Topology.Name, err)
	}
	return nil
}

// copyServed copies the vendors' images of Options.Serve from the caches.
func (l *Lab) copyServed(ctx context.Context, ours *Registry) error {
	caches := l.caches()
	if len(caches) == 0 {
		return nil
	}
	to := registry.New(ours.Addr.String())
	var errs []error
	for _, image := range l.options.Serve {
		if Ours(image) {
			continue
		}
		host, err := registry.HostOf(image)
		if err != nil {
			return err
		}
		from, ok := caches[host]
		if !ok {
			errs = append(errs, fmt.Errorf("image %s: no upstream for %s", image, host))
			continue
		}
		if err := to.Copy(ctx, image, from.Addr.String()); err != nil {
			errs = append(errs, l.options.Upstreams.Failed(host, image, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Lab) registryLink(r *Registry) topology.Link {
	return topology.Link{Network: l.Topology.Clusters[0].Nodes[0].Links[0].Network, Address: r.Addr.Addr()}
}

func (r *Registry) answers(ctx context.Context) error {
	var ended error
	err := await.Until(ctx, "the lab's registry at "+r.Addr.String(), 50*time.Millisecond, time.Minute,
		func(ctx context.Context) (bool, string, error) {
			if _, ended = r.PID(ctx); ended != nil {
				return ctx.Err() == nil, "", ctx.Err()
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Addr.String()+"/v2/", nil)
			if err != nil {
				return false, "", err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return false, "", err
			}
			response.Body.Close()
			return response.StatusCode == http.StatusOK, response.Status, nil
		})
	if err = errors.Join(err, ended); err == nil || ctx.Err() != nil {
		return err
	}
	log, logErr := r.Logs(ctx)
	said, _, _ := strings.Cut(log, "\n") // a stack trace follows if it ended
	return errors.Join(fmt.Errorf("%w; its log begins with: %s", err, said), logErr)
}

// dockerBridge is Docker's default network, which every engine has. Its name sorts
// before the names of labs' networks, so that a container on both has its default route.
const dockerBridge = "bridge"

// startCache runs a pull-through cache of a host's registry. Only caches can reach
// hosts outside the lab. They forward no packets.
func (l *Lab) startCache(ctx context.Context, r *Registry, image, host string) error {
	err := r.create(ctx, []topology.Link{l.registryLink(r)},
		// It listens on the lab's network alone, and not on Docker's, which others use.
		&container.Config{Image: image,
			Env: []string{"REGISTRY_PROXY_REMOTEURL=" + l.options.Upstreams[host], "REGISTRY_HTTP_ADDR=" + r.Addr.String()}},
		&container.HostConfig{Sysctls: map[string]string{"net.ipv4.ip_forward": "0"}})
	if err != nil {
		return err
	}
	if _, err := l.docker.NetworkConnect(ctx, dockerBridge, client.NetworkConnectOptions{Container: r.container}); err != nil {
		return fmt.Errorf("connecting %s to Docker's network %q: %w", r.name, dockerBridge, err)
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.answers(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return l.options.Upstreams.Failed(host, "", err)
	}
	return nil
}
