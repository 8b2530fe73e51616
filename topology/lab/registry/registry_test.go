package registry

import (
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/relapse-dev/relapse/topology/must"
)

const router = "docker.io/cloudnativelabs/kube-router"

// serve is an empty registry; it returns its address and a client.
func serve(t *testing.T) (string, *Client) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	addr := strings.TrimPrefix(server.URL, "http://")
	return addr, New(addr)
}

func push(t *testing.T, c *Client, image string, index bool) string {
	t.Helper()
	ref := must.Get(c.here(image))(t)
	if index {
		i := must.Get(random.Index(64, 1, 2))(t)
		must.NoError(t, remote.WriteIndex(ref, i, options(t.Context())...))
		return must.Get(i.Digest())(t).String()
	}
	i := must.Get(random.Image(64, 1))(t)
	must.NoError(t, remote.Write(ref, i, options(t.Context())...))
	return must.Get(i.Digest())(t).String()
}

func resolve(t *testing.T, c *Client, image string) string {
	return must.Get(c.Resolve(t.Context(), image))(t)
}

func TestMove(t *testing.T) {
	_, c := serve(t)
	older, newer := push(t, c, router+":v1.5.1", false), push(t, c, router+":v2.1.0", true)
	for _, step := range []struct{ to, want string }{{router + ":v1.5.1", older}, {router + ":v2.1.0", newer}, {router + "@" + older, older}} {
		must.Equal(t, step.to, step.want, must.Get(c.Move(t.Context(), router, step.to))(t))
		must.Equal(t, step.to, step.want, resolve(t, c, router))
	}
	must.Equal(t, "another tag moved too", newer, resolve(t, c, router+":v2.1.0"))
}

func TestErrors(t *testing.T) {
	addr, c := serve(t)
	digest := push(t, c, router+":v1.5.1", false)
	gone := New("127.0.0.1:1") // no program listens on the port of tcpmux
	for _, tt := range []struct {
		name string
		err  error
		want string
		not  bool // there
	}{
		{"no such tag", must.Err(c.Resolve(t.Context(), router)),
			"resolving docker.io/cloudnativelabs/kube-router: the registry at " + addr + " has no image docker.io/cloudnativelabs/kube-router", true},
		{"no such digest", must.Err(c.Resolve(t.Context(), router+"@sha256:"+strings.Repeat("0", 64))),
			"resolving docker.io/cloudnativelabs/kube-router@sha256:000", true},
		{"move to nothing", must.Err(c.Move(t.Context(), router, router+":v3")),
			"moving tag docker.io/cloudnativelabs/kube-router to docker.io/cloudnativelabs/kube-router:v3: the registry at " + addr + " has no image docker.io/cloudnativelabs/kube-router:v3", true},
		{"move a digest", must.Err(c.Move(t.Context(), router+"@"+digest, router+":v1.5.1")),
			"a digest cannot be moved", false},
		{"move to another repository", must.Err(c.Move(t.Context(), "docker.io/other/router", router+":v1.5.1")),
			"they are in different repositories", false},
		{"no name at all", must.Err(c.Resolve(t.Context(), "Not A Name")), `image "Not A Name": `, false},
		{"registry unreachable", must.Err(gone.Resolve(t.Context(), router)),
			"resolving docker.io/cloudnativelabs/kube-router: registry 127.0.0.1:1: ", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must.Fail(t, tt.err, tt.want)
			must.Equal(t, tt.err, tt.not, strings.Contains(fmt.Sprint(tt.err), "has no image"))
		})
	}
}

func TestCopy(t *testing.T) {
	upstreamAddr, upstream := serve(t)
	_, lab := serve(t)
	images := []string{router + ":v0.4.0", router + ":v1.0.0-rc5", "busybox:1"}
	want := map[string]string{
		images[0]: push(t, upstream, images[0], false),
		images[1]: push(t, upstream, images[1], true),
		images[2]: push(t, upstream, images[2], false),
	}
	for range 2 { // the second time there is nothing to do
		for _, image := range images {
			must.NoError(t, lab.Copy(t.Context(), image, upstreamAddr))
		}
	}
	for _, image := range images {
		must.Equal(t, image, want[image], resolve(t, lab, image))
	}
	must.Fail(t, lab.Copy(t.Context(), router+":none", upstreamAddr), "copying "+router+":none: the registry at")
}

func TestFile(t *testing.T) {
	_, c := serve(t)
	const image = "relapse.dev/manifest:v1"
	content := must.Get(crane.Image(map[string][]byte{"calico.yaml": []byte("kind: List\n"), "other": nil}))(t)
	must.NoError(t, remote.Write(must.Get(c.here(image))(t), content, options(t.Context())...))
	must.Equal(t, "", "kind: List\n", string(must.Get(c.File(t.Context(), image, "/calico.yaml"))(t)))
	must.Fail(t, must.Err(c.File(t.Context(), image, "/calico")), "no such file")
	must.Fail(t, must.Err(c.File(t.Context(), "relapse.dev/none:v1", "/calico.yaml")), "has no image")
}
