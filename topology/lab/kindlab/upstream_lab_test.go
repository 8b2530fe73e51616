//go:build lab && night

package kindlab_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
	"github.com/relapse-dev/relapse/topology/must"
)

const registryImage = "relapse.dev/registry:3.1.2"

// served is a vendor's image that the lab serves.
const served = "docker.io/cloudnativelabs/kube-router:v1.5.1"

// startUpstream runs a registry that plays all vendors' at once, on Docker's
// own bridge, and fills it.
func startUpstream(ctx context.Context, t *testing.T, docker *client.Client, catalogue *images.Catalogue, refs []string) (url, id string) {
	t.Helper()
	image, err := catalogue.LoadDocker(ctx, docker, registryImage)
	must.NoError(t, err)
	created := must.Get(docker.ContainerCreate(ctx, &container.Config{Image: image}, nil, nil, nil, "relapse-test-upstream"))(t)
	t.Cleanup(func() {
		must.NoError(t, docker.ContainerRemove(context.Background(), created.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	})
	must.NoError(t, docker.ContainerStart(ctx, created.ID, container.StartOptions{}))
	addr := must.Get(docker.ContainerInspect(ctx, created.ID))(t).NetworkSettings.Networks["bridge"].IPAddress + ":5000"
	everywhere := registry.Upstreams{"docker.io": "http://" + addr}
	err = await.Until(ctx, "the upstream registry", 50*time.Millisecond, 30*time.Second, func(ctx context.Context) (bool, string, error) {
		err := everywhere.Reach(ctx, everywhere.Hosts())
		return err == nil, "", err
	})
	must.NoError(t, err)
	must.NoError(t, catalogue.Push(ctx, addr, refs))
	return "http://" + addr, created.ID
}

// TestUpstream brings a lab up with all vendors' images from upstream, and checks that
// the lab's registry has them.
func TestUpstream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	docker := must.Get(client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation()))(t)
	defer docker.Close()
	catalogue := must.Get(images.Open("../../.."))(t)
	all := append(kindlab.ImagesOf(small), served)
	must.Get(catalogue.Build(ctx, all, func(images.Event) {}))(t)
	var vendors []string
	for _, ref := range all {
		if !kindlab.Ours(ref) {
			vendors = append(vendors, ref)
		}
	}
	url, upstream := startUpstream(ctx, t, docker, catalogue, vendors)
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
	t.Run("the control plane's images are the vendor's", func(t *testing.T) {
		const image = "registry.k8s.io/kube-apiserver:v1.34.4"
		must.Equal(t, image, digest(url, image), digest(inLab, image))
	})
	t.Run("what is served is the vendor's, and its tags can be moved", func(t *testing.T) {
		want := digest(url, served)
		must.Equal(t, "", want, digest(inLab, served))
		c := registry.New(inLab)
		if got, err := c.Move(ctx, "docker.io/cloudnativelabs/kube-router", served); err != nil || got != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	})
	t.Run("a run that builds its images does not take the lab", func(t *testing.T) {
		lab.Release()
		_, err := kindlab.Attach(ctx, docker, small, kindlab.Options{Images: catalogue})
		if want := fmt.Sprintf("lab %q was brought up with --images=upstream, not build", small.Name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if lab, err = kindlab.Attach(ctx, docker, small, options); err != nil {
			t.Error(err)
		}
	})
	t.Run("a lab does not begin to come up without its upstream", func(t *testing.T) {
		must.NoError(t, docker.ContainerKill(ctx, upstream, "KILL"))
		if lab != nil {
			lab.Release()
		}
		down()
		var unreachable *registry.UpstreamError
		if lab, err = kindlab.Up(ctx, docker, small, options); !errors.As(err, &unreachable) {
			t.Errorf("%v", err)
		}
		if left, err := kindlab.Exists(ctx, docker, small.Name); left || err != nil {
			t.Errorf("something of it is there: %v, %v", left, err)
		}
	})
}
