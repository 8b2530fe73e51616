package suite

import (
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/images"
	labregistry "github.com/relapse-dev/relapse/topology/lab/registry"
)

// The images of the scenario under test, of which the variants have two proxies.
const (
	pause   = "registry.k8s.io/pause:3.10"
	etcd    = "registry.k8s.io/etcd:3.6.5-0"
	proxy   = "registry.k8s.io/kube-proxy:v1.34.4"
	newer   = "registry.k8s.io/kube-proxy:v1.35.0"
	unknown = "registry.k8s.io/unpinned:1"
	ours    = "relapse.dev/probe:dev"
)

var tested = framework.Scenario{Variants: []framework.Variant{
	{Components: map[string]string{"kube-proxy": "1.34.4"}, Images: []string{proxy, newer, ours}},
	{Components: map[string]string{"kube-proxy": "1.35.0"}, Images: []string{newer, ours}},
}}

var all = []string{pause, etcd, proxy, newer, unknown, ours}

// vendor is a registry in the place of registry.k8s.io. It has all images.
type vendor struct {
	url     string
	digests map[string]v1.Hash // by image

	mu      sync.Mutex
	asked   []string // repositories
	instead func(http.ResponseWriter, *http.Request) bool
}

func newVendor(t *testing.T) *vendor {
	t.Helper()
	v := &vendor{digests: map[string]v1.Hash{}}
	has := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		v.asked = append(v.asked, r.URL.Path)
		instead := v.instead
		v.mu.Unlock()
		if instead == nil || !instead(w, r) {
			has.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	v.url = server.URL
	for _, ref := range all {
		content, err := random.Image(1000, 1)
		if err == nil {
			content, err = mutate.ConfigFile(content, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: rootFS(t, content)})
		}
		if err != nil {
			t.Fatal(err)
		}
		_, path, _ := strings.Cut(ref, "/")
		tag, err := name.NewTag(strings.TrimPrefix(v.url, "http://") + "/" + path)
		if err == nil {
			err = remote.Write(tag, content)
		}
		if err != nil {
			t.Fatal(err)
		}
		if v.digests[ref], err = content.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	v.asked = nil
	return v
}

func rootFS(t *testing.T, of v1.Image) v1.RootFS {
	t.Helper()
	config, err := of.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS
}

// requests are the paths that were asked for since the last call.
func (v *vendor) requests() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.asked
	v.asked = nil
	return asked
}

// catalogue has recipes of all images, of which all but one are pinned.
func (v *vendor) catalogue(t *testing.T) *images.Catalogue {
	t.Helper()
	root := t.TempDir()
	recipes, pins := "images:\n", ""
	for _, ref := range all {
		recipes += "  - {ref: '" + ref + "', labels: {is: '" + ref + "'}}\n"
		if ref != unknown {
			pins += ref + " " + v.digests[ref].String() + "\n"
		}
	}
	for name, text := range map[string]string{"a/image.yaml": recipes, "published.txt": pins} {
		file := filepath.Join(root, "images", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := images.Open(root, images.WithCache(filepath.Join(root, "cache")))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// noted keeps the notes.
type noted struct {
	engine.Progress
	mu    sync.Mutex
	notes []string
}

func (n *noted) Note(_, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, text)
}

// built are the notes of what is built in a vendor's place.
func (n *noted) built() []string {
	return slices.DeleteFunc(n.notes, func(text string) bool { return !strings.HasPrefix(text, "built here: ") })
}

// labsFrom are labs whose vendor's registry is at url.
func labsFrom(c *images.Catalogue, url string) (*labs, *noted) {
	n := &noted{Progress: engine.Silent}
	o := Options{Images: c, Vendors: NewVendors(labregistry.Upstreams{"registry.k8s.io": url})}
	o.Progress = n
	return newLabs(o), n
}

// prepare prepares all images of the scenario.
func prepare(t *testing.T, l *labs, s framework.Scenario) engine.Prepared {
	t.Helper()
	p, err := l.prepare(t.Context(), s, all)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// taken are the images that were not built.
func taken(p engine.Prepared) []string {
	var refs []string
	for _, ref := range slices.Sorted(maps.Keys(p.Origins)) {
		if p.Origins[ref] != report.Built {
			refs = append(refs, ref)
		}
	}
	return refs
}

// What is under test, ours or not pinned is built, and the registry is not asked for it.
func TestAuto(t *testing.T) {
	v := newVendor(t)
	c := v.catalogue(t)
	l, n := labsFrom(c, v.url)
	p := prepare(t, l, tested)
	if got, want := taken(p), []string{etcd, pause}; !slices.Equal(got, want) {
		t.Fatalf("taken: %v, want %v; %v", got, want, n.notes)
	}
	host := strings.TrimPrefix(v.url, "http://")
	for _, ref := range []string{etcd, pause} {
		if want := host + "@" + v.digests[ref].String(); p.Origins[ref] != want || p.Digests[ref] != v.digests[ref].String() {
			t.Errorf("%s: origin %s, digest %s, want %s", ref, p.Origins[ref], p.Digests[ref], want)
		}
	}
	for _, ref := range []string{proxy, newer, unknown, ours} {
		if p.Digests[ref] == v.digests[ref].String() {
			t.Errorf("%s is the vendor's", ref)
		}
	}
	for _, path := range v.requests() {
		if path != "/v2/" && !strings.HasPrefix(path, "/v2/pause/") && !strings.HasPrefix(path, "/v2/etcd/") {
			t.Errorf("the registry was asked for %s", path)
		}
	}
	if want := map[string]string{etcd: v.digests[etcd].String(), pause: v.digests[pause].String()}; !maps.Equal(l.kindOptions(framework.Scenario{}, nil).Published, want) {
		t.Errorf("the lab gets %v", l.kindOptions(framework.Scenario{}, nil).Published)
	}

	t.Run("again, nobody is asked", func(t *testing.T) {
		again, _ := labsFrom(c, v.url)
		if got := taken(prepare(t, again, tested)); !slices.Equal(got, []string{etcd, pause}) || len(v.requests()) > 0 {
			t.Errorf("taken: %v, asked %v", got, v.requests())
		}
	})
	t.Run("what a variant names is built, also if no other version of it is there", func(t *testing.T) {
		other := framework.Scenario{Variants: []framework.Variant{{Components: map[string]string{"metallb": "0.14.8"}, Images: []string{proxy}}}}
		p, err := l.prepare(t.Context(), other, []string{proxy, pause})
		if err != nil || p.Origins[proxy] != report.Built {
			t.Errorf("the cache has a built one: %s, %v", p.Origins[proxy], err)
		}
		fresh, _ := labsFrom(v.catalogue(t), v.url)
		if p, err := fresh.prepare(t.Context(), other, []string{proxy, pause}); err != nil || p.Origins[proxy] != report.Built {
			t.Errorf("%s, %v", p.Origins[proxy], err)
		}
		other.Variants[0].Images = []string{pause}
		fresh, _ = labsFrom(v.catalogue(t), v.url)
		if p, err := fresh.prepare(t.Context(), other, []string{etcd, pause}); err != nil || p.Origins[pause] != report.Built || p.Origins[etcd] == report.Built {
			t.Errorf("pause %s, etcd %s, %v", p.Origins[pause], p.Origins[etcd], err)
		}
		fresh, _ = labsFrom(v.catalogue(t), v.url)
		if got := taken(prepare(t, fresh, tested)); !slices.Equal(got, []string{etcd, pause}) {
			t.Errorf("taken: %v", got)
		}
	})
	t.Run("without vendors all are built, whatever the cache has", func(t *testing.T) {
		o := Options{Images: c}
		if got := taken(prepare(t, newLabs(o), tested)); len(got) > 0 {
			t.Errorf("taken: %v", got)
		}
	})
	t.Run("what the cache has built is not asked for", func(t *testing.T) {
		c := v.catalogue(t)
		if _, err := c.Build(t.Context(), all, nil); err != nil {
			t.Fatal(err)
		}
		v.requests()
		l, _ := labsFrom(c, v.url)
		if got := taken(prepare(t, l, tested)); len(got) > 0 || len(v.requests()) > 0 {
			t.Errorf("taken: %v", got)
		}
	})
}

// A registry that cannot be used fails no run, is named once, and is not asked again.
func TestAutoFallsBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	hangs := "http://" + listener.Addr().String()
	for name, test := range map[string]struct {
		url     string // empty: the vendor
		instead func(http.ResponseWriter, *http.Request) bool
		notes   []string // beginnings
		taken   []string
		again   bool // a second scenario of the run asks again
	}{
		"it refuses": {url: "http://127.0.0.1:1", notes: []string{
			etcd + ", " + pause + ": the registry of registry.k8s.io, http://127.0.0.1:1, cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused",
		}},
		"it hangs": {url: hangs, notes: []string{etcd + ", " + pause + ": the registry of registry.k8s.io, " + hangs + ", cannot be reached: no answer within 3s"}},
		"it asks for a login": {instead: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(401); return true }, notes: []string{
			etcd + ", " + pause + ": the registry URL: it answers 401 Unauthorized to a request for the pinned digest",
		}, again: true},
		"it has another digest": {instead: func(w http.ResponseWriter, r *http.Request) bool {
			gone := strings.HasPrefix(r.URL.Path, "/v2/pause/manifests/")
			if gone {
				w.WriteHeader(404)
			}
			return gone
		}, notes: []string{pause + ": the registry URL: it answers 404 Not Found to a request for the pinned digest"}, taken: []string{etcd}, again: true},
		"a blob is another": {instead: func(w http.ResponseWriter, r *http.Request) bool {
			other := strings.HasPrefix(r.URL.Path, "/v2/pause/blobs/")
			if other {
				_, _ = w.Write([]byte("other"))
			}
			return other
		}, notes: []string{pause + ": the registry URL: "}, taken: []string{etcd}, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVendor(t)
			v.instead = test.instead
			if test.url == "" {
				test.url = v.url
			}
			l, n := labsFrom(v.catalogue(t), test.url)
			began := time.Now()
			p := prepare(t, l, tested)
			if took := time.Since(began); took > labregistry.AskWithin+2*time.Second {
				t.Errorf("it took %s", took)
			}
			if got := taken(p); !slices.Equal(got, test.taken) {
				t.Errorf("taken: %v, want %v", got, test.taken)
			}
			notes := n.built()
			if len(notes) != len(test.notes) {
				t.Fatalf("notes %q, want %q", notes, test.notes)
			}
			for i, want := range test.notes {
				if !strings.HasPrefix(notes[i], "built here: "+strings.ReplaceAll(want, "URL", test.url)) {
					t.Errorf("note %q, want %q", notes[i], want)
				}
			}
			n.notes = nil
			began = time.Now()
			if _, err := l.Vendors.take(t.Context(), v.catalogue(t), []string{pause, etcd}, n); err != nil {
				t.Fatal(err)
			}
			if asked := len(n.built()) > 0; asked != test.again || !asked && time.Since(began) > time.Second {
				t.Errorf("asked again in this run: %t, want %t; %v", asked, test.again, n.notes)
			}
		})
	}
}
