//go:build lab && night

package kindlab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
	"github.com/relapse-dev/relapse/topology/must"
)

const registryImage = "relapse.dev/registry:2.8"

// Two versions of one vendor's image: the lab serves one, and a node pulls the other.
const (
	served   = "docker.io/cloudnativelabs/kube-router:v1.5.1"
	unserved = "docker.io/cloudnativelabs/kube-router:v2.1.0"
)

// startUpstream runs and fills a registry on Docker's own bridge that stands for all vendors' registries.
func startUpstream(ctx context.Context, t *testing.T, docker *client.Client, catalogue *images.Catalogue, refs []string) (url, id string) {
	t.Helper()
	image := must.Get(catalogue.LoadDocker(ctx, docker, registryImage))(t)
	created := must.Get(docker.ContainerCreate(ctx, client.ContainerCreateOptions{Name: "relapse-test-upstream", Image: image}))(t)
	t.Cleanup(func() {
		must.Get(docker.ContainerRemove(context.Background(), created.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}))(t)
	})
	must.Get(docker.ContainerStart(ctx, created.ID, client.ContainerStartOptions{}))(t)
	inspected := must.Get(docker.ContainerInspect(ctx, created.ID, client.ContainerInspectOptions{}))(t).Container
	addr := inspected.NetworkSettings.Networks["bridge"].IPAddress.String() + ":5000"
	everywhere := registry.Upstreams{"docker.io": "http://" + addr}
	must.NoError(t, await.Until(ctx, "the upstream registry", 50*time.Millisecond, 30*time.Second, func(ctx context.Context) (bool, string, error) {
		err := everywhere.Reach(ctx, everywhere.Hosts())
		return err == nil, "", err
	}))
	must.NoError(t, catalogue.Push(ctx, addr, refs))
	return "http://" + addr, created.ID
}

// TestUpstream brings a lab up with all vendors' images from upstream, and checks which
// registry serves which image.
func TestUpstream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	all := append(kindlab.ImagesOf(small), served, unserved)
	docker, catalogue := dockerAndImages(ctx, t, all)
	url, upstream := startUpstream(ctx, t, docker, catalogue, each.Where(all, func(ref string) bool { return !kindlab.Ours(ref) }))
	from := registry.Upstreams{}
	for _, host := range must.Get(registry.NewUpstreams(nil))(t).Hosts() {
		from[host] = url
	}

	down := func() {
		if err := kindlab.Down(context.Background(), docker, small.Name); err != nil {
			t.Error(err)
		}
	}
	down()
	options := kindlab.Options{Images: catalogue, Serve: []string{served}, Upstreams: from}
	lab, err := kindlab.Up(ctx, docker, small, options)
	defer func() {
		if lab != nil {
			lab.Release()
		}
		down()
		if left, err := kindlab.Exists(context.Background(), docker, small.Name); err != nil || left {
			t.Errorf("something is left: %v, %v", left, err)
		}
	}()
	must.NoError(t, err)

	digest := func(at, image string) string {
		t.Helper()
		c := registry.New(strings.TrimPrefix(at, "http://"))
		return must.Get(c.Resolve(ctx, image))(t)
	}
	inLab := lab.Registry().Addr.String()
	t.Run("the control plane's images came through a cache", func(t *testing.T) {
		logs := must.Get(lab.Logs(ctx, time.Time{}))(t)
		const want = `"HEAD /v2/kube-apiserver/manifests/v1.34.4?ns=registry.k8s.io HTTP/1.1" 200`
		if !strings.Contains(logs["cache-registry.k8s.io"], want) || !strings.Contains(logs["registry"], strings.Replace(want, "200", "404", 1)) {
			t.Errorf("no %s in\n%s", want, logs["cache-registry.k8s.io"])
		}
	})
	t.Run("a cache does not listen on Docker's network", func(t *testing.T) {
		cache := must.Get(docker.ContainerInspect(ctx, "relapse-"+small.Name+"-cache-docker.io", client.ContainerInspectOptions{}))(t)
		on := cache.Container.NetworkSettings.Networks["bridge"].IPAddress
		if conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(on, 5000).String(), time.Second); !on.IsValid() || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%q: %v, %v; want it to be refused", on, conn, err)
		}
	})
	t.Run("what is served is the vendor's, and its tags can be moved", func(t *testing.T) {
		want := digest(url, served)
		must.Equal(t, "", want, digest(inLab, served))
		c := registry.New(inLab)
		must.Equal(t, "", want, must.Get(c.Move(ctx, "docker.io/cloudnativelabs/kube-router", served))(t))
	})
	pull := func(node, image string) error {
		_, err := lab.Node(node).Exec(ctx, "crictl", "--timeout", "1m", "pull", image)
		return err
	}
	t.Run("what is not served comes when a node asks for it, and stays", func(t *testing.T) {
		want := digest(url, unserved)
		must.NoError(t, pull("first", unserved))
		pulled, err := lab.Node("first").Exec(ctx, "crictl", "inspecti", "-o", "go-template", "--template", "{{.status.repoDigests}}", unserved)
		if err != nil || !strings.Contains(pulled, want) {
			t.Errorf("%s, %v, want %s", pulled, err, want)
		}
		must.Get(docker.ContainerKill(ctx, upstream, client.ContainerKillOptions{Signal: "KILL"}))(t)
		must.NoError(t, pull("second", unserved)) // the cache keeps it
	})
	t.Run("a node says why it cannot have what is nowhere", func(t *testing.T) {
		must.Fail(t, pull("first", "docker.io/cloudnativelabs/kube-router:v0.4.0"), "kube-router:v0.4.0")
	})
	t.Run("a run that builds its images does not take the lab", func(t *testing.T) {
		lab.Release()
		_, err := kindlab.Attach(ctx, docker, small, kindlab.Options{Images: catalogue})
		must.Fail(t, err, fmt.Sprintf("lab %q was brought up with --images=upstream, not build", small.Name))
		if lab, err = kindlab.Attach(ctx, docker, small, options); err != nil {
			t.Error(err)
		}
	})
	t.Run("a lab does not begin to come up without its upstream", func(t *testing.T) {
		if lab != nil {
			lab.Release()
		}
		down()
		lab, err = kindlab.Up(ctx, docker, small, options)
		must.Fail(t, err, "cannot be reached")
		if left, err := kindlab.Exists(ctx, docker, small.Name); left || err != nil {
			t.Errorf("something of it is there: %v, %v", left, err)
		}
	})
}
