package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestPush(t *testing.T) {
	files := map[string]string{"k/image.yaml": "images: [{ref: k8s.dev/group/k:v1, files: [{source: k, path: /k}]}]", "k/k": "k"}
	maps.Copy(files, tiny)
	c := open(t, newRoot(t, files))
	refs := []string{"x.dev/a:1", "x.dev/b:1", "k8s.dev/group/k:v1"}
	must.Fail(t, c.Push(t.Context(), "127.0.0.1:1", refs), "build it first")
	digests := mustBuild(t, c, refs...)

	var writes atomic.Int32
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			writes.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	addr := strings.TrimPrefix(server.URL, "http://")
	must.NoError(t, c.Push(t.Context(), addr, refs))
	for ref, path := range map[string]string{"x.dev/a:1": "a:1", "x.dev/b:1": "b:1", "k8s.dev/group/k:v1": "group/k:v1"} {
		got := must.Get(remote.Head(must.Get(name.NewTag(addr + "/" + path))(t)))(t)
		must.Equal(t, path, digests[ref], got.Digest)
	}
	writes.Store(0)
	must.NoError(t, c.Push(t.Context(), addr, refs))
	must.Equal(t, "writes of pushing again", 0, writes.Load())
}

func TestPushRefusesCollisions(t *testing.T) {
	c := open(t, newRoot(t, map[string]string{"a/image.yaml": "images: [{ref: x.dev/a:1}, {ref: y.dev/a:1}]"}))
	refs := []string{"x.dev/a:1", "y.dev/a:1"}
	mustBuild(t, c, refs...)
	must.Fail(t, c.Push(t.Context(), "127.0.0.1:1", refs), "would both be a:1")
}

// engine is as much of a Docker engine as LoadDocker speaks to.
type engine struct {
	images map[string]bool
	loads  int
	answer string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/images/load") {
		e.loads++
		for archive := tar.NewReader(r.Body); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			var manifest []struct{ RepoTags []string }
			if header.Name == "manifest.json" && json.NewDecoder(archive).Decode(&manifest) == nil {
				e.images[manifest[0].RepoTags[0]] = true
			}
		}
		_, _ = io.WriteString(w, e.answer)
		return
	}
	_, image, _ := strings.Cut(r.URL.Path, "/images/")
	if !e.images[strings.TrimSuffix(image, "/json")] {
		http.Error(w, `{"message":"No such image"}`, http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, "{}")
}

func TestLoadDocker(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	mustBuild(t, c, "x.dev/b:1")
	e := &engine{images: map[string]bool{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	docker := must.Get(client.New(client.WithHost("tcp://"+strings.TrimPrefix(server.URL, "http://")), client.WithAPIVersion("1.41")))(t)
	t.Cleanup(func() { docker.Close() })
	first := must.Get(c.LoadDocker(t.Context(), docker, "x.dev/b:1"))(t)
	if !strings.HasPrefix(first, "x.dev/b:1-") || !e.images[first] {
		t.Errorf("loaded as %q, the engine has %v", first, e.images)
	}
	must.Equal(t, "second time", first, must.Get(c.LoadDocker(t.Context(), docker, "x.dev/b:1"))(t))
	must.Equal(t, "loads", 1, e.loads)

	e.images, e.answer = map[string]bool{}, `{"errorDetail":{"message":"no space"},"error":"no space left"}`
	must.Fail(t, must.Err(c.LoadDocker(t.Context(), docker, "x.dev/b:1")), "no space left")
}

func TestSave(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	var archive bytes.Buffer
	must.Fail(t, c.Save(t.Context(), "x.dev/b:1", &archive)) // it is not built
	must.Equal(t, "bytes", 0, archive.Len())
	built := builtEntry(t, c, "x.dev/b:1")
	must.NoError(t, c.Save(t.Context(), "x.dev/b:1", &archive))
	tag := must.Get(name.NewTag("x.dev/b:1"))(t)
	saved := must.Get(tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }, &tag))(t)
	must.Equal(t, "config", built.manifest.Config.Digest, must.Get(saved.ConfigName())(t))
}
