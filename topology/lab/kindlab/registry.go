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

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Registry is the registry that a lab's nodes pull from, whatever host an
// image's name has.
type Registry struct {
	member
	// Addr is where it listens.
	Addr netip.AddrPort
}

// Registry is the handle of the lab's registry. A lab without clusters has
// none.
func (l *Lab) Registry() *Registry { return &Registry{*l.member("registry"), l.registryAddr()} }

// caches are the lab's pull-through caches, one for each vendor's host: a
// registry can be the cache of one other only. They are there only if the lab
// has upstreams.
func (l *Lab) caches() map[string]*Registry {
	all := map[string]*Registry{}
	if len(l.Topology.Clusters) == 0 {
		return all
	}
	for i, host := range l.options.Upstreams.Hosts() {
		all[host] = &Registry{*l.member("cache-" + host), l.freeAddr(i + 1)}
	}
	return all
}

// ownHost is the host in the names of images that no vendor publishes.
const ownHost = "relapse.dev"

// Ours tells whether an image is our own: no vendor publishes it.
func Ours(image string) bool { return strings.HasPrefix(image, ownHost+"/") }

// reachUpstreams makes sure that the vendors' registries answer, before
// anything is built that would be of no use without them.
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

// Sources of a lab's images, as they are noted in its state folder.
const (
	built     = "build"
	published = "upstream"
)

// source is where the vendors' images of the lab come from.
func (l *Lab) source() string {
	if len(l.options.Upstreams) > 0 {
		return published
	}
	return built
}

func (l *Lab) sourceFile() string { return filepath.Join(stateDir(l.Topology.Name), "images") }

// checkSource refuses a running lab whose images come from another source than
// the one that this run asks for: its report would name the wrong one.
func (l *Lab) checkSource() error {
	text, err := os.ReadFile(l.sourceFile())
	if err != nil {
		return fmt.Errorf("looking where the images of lab %q come from: %w", l.Topology.Name, err)
	}
	if was := string(text); was != l.source() {
		return fmt.Errorf("lab %q was brought up with --images=%s, and not %s: take it down and run again without --reuse", l.Topology.Name, was, l.source())
	}
	return nil
}

// writeMirrors tells the nodes' containerd where to pull from. Whatever host an
// image's name has, the lab's registry is asked first, and then the cache of that
// host, if there is one.
func (l *Lab) writeMirrors() error {
	ours := l.Registry()
	mirrors := map[string][]*Registry{"_default": {ours}}
	for host, cache := range l.caches() {
		mirrors[host] = []*Registry{ours, cache}
	}
	for host, asked := range mirrors {
		text := fmt.Sprintf("server = \"http://%s\"\n", asked[len(asked)-1].Addr)
		for _, r := range asked {
			text += fmt.Sprintf("\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.Addr)
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

// startRegistry starts the lab's registry and fills it with what the nodes
// will ask for. Where there are upstreams, the vendors' images come from them:
// those to be served are copied, because a scenario moves their tags and a
// cache's cannot be moved; the rest comes when a node asks. It closes served when
// a control plane can pull what it needs; a lab without clusters needs nothing.
func (l *Lab) startRegistry(ctx context.Context, image string, served chan<- struct{}) error {
	if len(l.Topology.Clusters) == 0 {
		close(served)
		return nil
	}
	ours := l.Registry()
	start, startCtx := errgroup.WithContext(ctx)
	start.Go(func() error {
		return l.startOurs(startCtx, ours, image)
	})
	for host, cache := range l.caches() {
		start.Go(func() error { return l.startCache(startCtx, cache, image, host) })
	}
	if err := start.Wait(); err != nil {
		return err
	}
	// The control plane cannot start without its images, so they come first.
	if err := l.push(ctx, controlPlaneImages); err != nil {
		return err
	}
	close(served)
	return l.serve(ctx)
}

// startOurs starts the lab's registry. It reads blobs from the cache of images
// itself: to copy a GB for each lab would take seconds of both CPU and disk.
func (l *Lab) startOurs(ctx context.Context, r *Registry, image string) error {
	blobs, byRepository, err := l.options.Images.Blobs(ctx, l.pushed(append(slices.Clone(controlPlaneImages), l.options.Serve...)))
	if err != nil {
		return err
	}
	linked, err := registry.Linked(blobs, byRepository)
	if err != nil {
		return err
	}
	err = r.create(ctx, []topology.Link{l.registryLink(r)}, &container.Config{Image: image},
		&container.HostConfig{Binds: []string{blobs + ":" + blobs + ":ro"}})
	if err != nil {
		return err
	}
	// The folder is that of images/registry/config.yml.
	err = r.docker.CopyToContainer(ctx, r.container, "/var/lib/registry", bytes.NewReader(linked), container.CopyToContainerOptions{})
	if err != nil {
		return fmt.Errorf("linking the cache's blobs into %s: %w", r.name, err)
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	return r.answers(ctx)
}

// serve puts what is to be pulled into the lab's registry. What is there
// already stays.
func (l *Lab) serve(ctx context.Context) error {
	if err := l.push(ctx, l.options.Serve); err != nil {
		return err
	}
	return l.copyServed(ctx, l.Registry())
}

// pushed leaves out the images that come from upstreams.
func (l *Lab) pushed(refs []string) []string {
	if len(l.options.Upstreams) == 0 {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return !Ours(ref) })
}

// push puts images into the lab's registry, but for those that come from
// upstreams.
func (l *Lab) push(ctx context.Context, refs []string) error {
	if refs = l.pushed(refs); len(refs) == 0 {
		return nil
	}
	if err := l.options.Images.Push(ctx, l.Registry().Addr.String(), refs); err != nil {
		return fmt.Errorf("filling the registry of lab %q: %w", l.Topology.Name, err)
	}
	return nil
}

// copyServed copies the vendors' images that are to be served, through the
// caches.
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
			return errors.Join(err, to.Close())
		}
		from, known := caches[host]
		if !known {
			errs = append(errs, fmt.Errorf("image %s: no upstream for %s", image, host))
			continue
		}
		if err := to.Copy(ctx, []string{image}, from.Addr.String()); err != nil {
			errs = append(errs, &registry.UpstreamError{Host: host, URL: l.options.Upstreams[host], Image: image, Err: err})
		}
	}
	return errors.Join(append(errs, to.Close())...)
}

// registryLink is a registry's place on the nodes' network.
func (l *Lab) registryLink(r *Registry) topology.Link {
	return topology.Link{Network: l.Topology.Clusters[0].Nodes[0].Links[0].Network, Address: r.Addr.Addr()}
}

// answers waits until a registry that was started answers, or has ended.
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
	said, _, _ := strings.Cut(log, "\n") // what follows is a stack trace, if it ended
	return errors.Join(fmt.Errorf("%w; its log begins with: %s", err, said), logErr)
}

// wayOut is Docker's own bridge, which every engine has. Its name comes before
// those of all labs' networks, so that it has the default route of a container
// that is on both.
const wayOut = "bridge"

// startCache runs a pull-through cache of a host's registry. It is the only kind
// of member with a way out of the lab, and forwards no packets of others.
func (l *Lab) startCache(ctx context.Context, r *Registry, image, host string) error {
	upstream := l.options.Upstreams[host]
	err := r.create(ctx, []topology.Link{l.registryLink(r)},
		&container.Config{Image: image, Env: []string{"REGISTRY_PROXY_REMOTEURL=" + upstream}},
		&container.HostConfig{Sysctls: map[string]string{"net.ipv4.ip_forward": "0"}})
	if err != nil {
		return err
	}
	if err := l.docker.NetworkConnect(ctx, wayOut, r.container, nil); err != nil {
		return fmt.Errorf("connecting %s to Docker's network %q: %w", r.name, wayOut, err)
	}
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.answers(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return &registry.UpstreamError{Host: host, URL: upstream, Err: err}
	}
	return nil
}
