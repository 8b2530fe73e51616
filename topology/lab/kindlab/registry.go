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
		r.Addr = l.registryAddr()
	}
	return r
}

// ownHost is the host in the names of our own images.
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

// Sources of a lab's images, as recorded in its state folder: the values of --images.
const (
	built    = "build"
	upstream = "upstream"
)

func (l *Lab) source() string {
	if len(l.options.Upstreams) > 0 {
		return upstream
	}
	return built
}

func (l *Lab) sourceFile() string { return filepath.Join(stateDir(l.Topology.Name), "images") }

// checkSource rejects a running lab whose images are of another source than this
// run's: its report would name the wrong one.
func (l *Lab) checkSource() error {
	text, err := os.ReadFile(l.sourceFile())
	if err != nil {
		return fmt.Errorf("reading the image source of lab %q: %w", l.Topology.Name, err)
	}
	if was, is := string(text), l.source(); was != is {
		return fmt.Errorf("lab %q was brought up with --images=%s, not %s: take it down, or run without --reuse", l.Topology.Name, was, is)
	}
	return nil
}

// writeMirrors writes the mirror configuration of the nodes' containerd: for all hosts the
// lab's registry.
func (l *Lab) writeMirrors() error {
	dir := filepath.Join(l.mirrorsDir(), "_default")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf("server = \"http://%s\"\n%s", l.Registry().Addr, l.Registry().mirror())
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600)
}

func (r *Registry) mirror() string {
	return fmt.Sprintf("\n[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", r.Addr)
}

// startRegistry starts the lab's registry, with the images that a control plane needs to
// start. A lab without clusters has no registry.
func (l *Lab) startRegistry(ctx context.Context, image string) error {
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	if err := l.startOurs(ctx, l.Registry(), image); err != nil {
		return err
	}
	return l.fill(ctx, controlPlaneImages)
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
		link := topology.Link{Network: l.Topology.Clusters[0].Nodes[0].Links[0].Network, Address: r.Addr.Addr()}
		err = r.create(ctx, []topology.Link{link}, &container.Config{Image: image}, host)
	}
	if err != nil {
		return err
	}
	// images/registry/config.yml names the folder.
	err = r.docker.CopyToContainer(ctx, r.container, "/var/lib/registry", bytes.NewReader(linked), container.CopyToContainerOptions{})
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
	info, err := r.docker.ContainerInspect(ctx, r.container)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("inspecting container %q: %w", r.container, err)
	}
	at := info.NetworkSettings.Networks[network]
	if at == nil {
		return netip.AddrPort{}, fmt.Errorf("container %q is not on network %q", r.container, network)
	}
	address, err := netip.ParseAddr(at.IPAddress)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("the address of container %q: %w", r.container, err)
	}
	return netip.AddrPortFrom(address, registryPort), nil
}

// serve adds the images of Options.Serve to the lab's registry.
func (l *Lab) serve(ctx context.Context) error {
	if len(l.Topology.Clusters) == 0 {
		return nil
	}
	return l.fill(ctx, l.options.Serve)
}

// pushed are those of some images that are our own builds.
func (l *Lab) pushed(refs []string) []string {
	if len(l.options.Upstreams) == 0 {
		return refs
	}
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return !Ours(ref) })
}

// fill makes images available in the lab's registry: our own builds and, with upstreams, the
// vendors' own.
func (l *Lab) fill(ctx context.Context, refs []string) error {
	at, built := l.Registry().Addr.String(), l.pushed(refs)
	if len(built) > 0 {
		if err := l.options.Images.Push(ctx, at, built); err != nil {
			return fmt.Errorf("filling the registry of lab %q: %w", l.Topology.Name, err)
		}
	}
	copies, ctx := errgroup.WithContext(ctx)
	copies.SetLimit(4) // keeps a slow link busy
	for _, ref := range refs {
		if !slices.Contains(built, ref) {
			copies.Go(func() error { return registry.New(at).CopyFrom(ctx, l.options.Upstreams, ref) })
		}
	}
	return copies.Wait()
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
