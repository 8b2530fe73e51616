package images

import (
	"errors"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// vendor is a registry in a vendor's place. Answer, if set, answers in place of it, or
// returns false.
type vendor struct {
	host   string
	answer func(w http.ResponseWriter, r *http.Request, ours http.Handler) bool
}

func newVendor(t *testing.T) *vendor {
	t.Helper()
	v := &vendor{}
	ours := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v.answer == nil || !v.answer(w, r, ours) {
			ours.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	v.host = strings.TrimPrefix(server.URL, "http://")
	return v
}

// image is one for an architecture, with a layer of half a megabyte.
func image(t *testing.T, arch string) v1.Image {
	t.Helper()
	made, err := random.Image(500_000, 1)
	if err != nil {
		t.Fatal(err)
	}
	config, err := made.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", arch
	if made, err = mutate.ConfigFile(made, config); err != nil {
		t.Fatal(err)
	}
	return made
}

func digestOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) v1.Hash {
	t.Helper()
	digest, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// push puts an image, or an index, into the registry as p:1, and returns its digest.
func (v *vendor) push(t *testing.T, content remote.Taggable) v1.Hash {
	t.Helper()
	tag, err := name.NewTag(v.host + "/p:1")
	if err == nil {
		switch content := content.(type) {
		case v1.Image:
			err = remote.Write(tag, content)
		case v1.ImageIndex:
			err = remote.WriteIndex(tag, content)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return digestOf(t, content.(interface{ Digest() (v1.Hash, error) }))
}

// pinned is a catalogue in which p.dev/p:1 is pinned.
func pinned(t *testing.T, pin v1.Hash) *Catalogue {
	t.Helper()
	return open(t, newRoot(t, map[string]string{
		"p/image.yaml":  "images: [{ref: p.dev/p:1, files: [{source: p, path: /p}]}]",
		"p/p":           "built",
		"published.txt": "# a remark\n\np.dev/p:1 " + pin.String() + "\n",
	}))
}

func (v *vendor) at(t *testing.T, digest v1.Hash) name.Digest {
	t.Helper()
	at, err := name.NewDigest(v.host + "/p@" + digest.String())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// What is taken is what Build, Digests and Push hand on, in this view of the catalogue alone.
func TestTake(t *testing.T) {
	const ref = "p.dev/p:1"
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	mine := image(t, runtime.GOARCH)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: image(t, other), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: other}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	for kind, content := range map[string]remote.Taggable{"an image": mine, "an index": index} {
		t.Run(kind, func(t *testing.T) {
			v := newVendor(t)
			pin := v.push(t, content)
			c := pinned(t, pin)
			if err := c.Take(t.Context(), ref, v.at(t, pin)); err != nil {
				t.Fatal(err)
			}
			held, err := c.Published([]string{ref, "p.dev/none:1"})
			if want := map[string]Published{ref: {pin, digestOf(t, mine), v.host}}; err != nil || !maps.Equal(held, want) {
				t.Fatalf("%v, %v, want %v", held, err, want)
			}
			v.answer = func(http.ResponseWriter, *http.Request, http.Handler) bool {
				t.Error("it is asked again")
				return false
			}
			if err := c.Take(t.Context(), ref, v.at(t, pin)); err != nil {
				t.Fatal(err)
			}
			if missing, err := c.Unbuilt(t.Context(), []string{ref}); err != nil || !slices.Equal(missing, []string{ref}) {
				t.Errorf("unbuilt: %v, %v", missing, err)
			}
			built := mustBuild(t, c, ref)[ref]
			with := c.With(held)
			if taken := mustBuild(t, with, ref)[ref]; taken != digestOf(t, mine) || taken == built {
				t.Errorf("with what was taken it is %s, taken is %s, built %s", taken, digestOf(t, mine), built)
			}
			if modules, err := with.TestedModules(t.Context(), []string{ref}); err != nil || len(modules) > 0 {
				t.Errorf("modules %v, %v", modules, err)
			}
			lab := newVendor(t)
			if err := with.Push(t.Context(), lab.host, []string{ref}); err != nil {
				t.Fatal(err)
			}
			tag, err := name.NewTag(lab.host + "/p:1")
			if err != nil {
				t.Fatal(err)
			}
			if served, err := remote.Head(tag); err != nil || served.Digest != digestOf(t, mine) {
				t.Errorf("the lab's registry serves %v, %v", served, err)
			}
			if damaged, err := c.Verify(t.Context()); err != nil || len(damaged) > 0 {
				t.Errorf("damaged: %v, %v", damaged, err)
			}
			if missing, err := c.Unbuilt(t.Context(), []string{ref}); err != nil || len(missing) > 0 {
				t.Errorf("unbuilt after a build: %v, %v", missing, err)
			}
		})
	}
}

// part is the kind of what a request is for.
func part(r *http.Request, kind string) bool { return strings.Contains(r.URL.Path, "/"+kind+"/") }

// A registry that serves anything else than the pinned image leaves the cache without one.
func TestTakeRefuses(t *testing.T) {
	const ref = "p.dev/p:1"
	good, evil := image(t, runtime.GOARCH), image(t, runtime.GOARCH)
	manifest, err := evil.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	pin := digestOf(t, good)
	type answer = func(w http.ResponseWriter, r *http.Request, ours http.Handler) bool
	status := func(code int) answer {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool { w.WriteHeader(code); return true }
	}
	for name, test := range map[string]struct {
		content v1.Image
		answer  answer
		want    string
	}{
		"another manifest under the digest": {good, func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if part(r, "manifests") {
				w.Header().Set("Docker-Content-Digest", pin.String())
				w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
				_, _ = w.Write(manifest)
			}
			return part(r, "manifests")
		}, "does not match requested digest"},
		"another manifest, in a format whose digest the client does not compute": {good, func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if part(r, "manifests") {
				w.Header().Set("Docker-Content-Digest", pin.String())
				w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+prettyjws")
				_, _ = w.Write(manifest)
			}
			return part(r, "manifests")
		}, "unsupported MediaType"},
		"other layers and another config": {good, func(w http.ResponseWriter, r *http.Request, ours http.Handler) bool {
			if part(r, "blobs") {
				record := httptest.NewRecorder()
				ours.ServeHTTP(record, r)
				body := record.Body.Bytes()
				body[len(body)/2] ^= 1
				_, _ = w.Write(body)
			}
			return part(r, "blobs")
		}, "verif"},
		"a login is asked for": {good, status(http.StatusUnauthorized), "401"},
		"it has another one":   {evil, nil, "MANIFEST_UNKNOWN"},
		"a part is missing": {good, func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if part(r, "blobs") {
				w.WriteHeader(http.StatusNotFound)
			}
			return part(r, "blobs")
		}, "404"},
		"it stalls midway": {good, func(w http.ResponseWriter, r *http.Request, ours http.Handler) bool {
			if !part(r, "blobs") {
				return false
			}
			record := httptest.NewRecorder()
			ours.ServeHTTP(record, r)
			if record.Body.Len() < 400_000 { // the config
				_, _ = w.Write(record.Body.Bytes())
				return true
			}
			_, _ = w.Write(record.Body.Bytes()[:300_000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}, "the download has stalled: fewer than 100 kB in "},
		"it breaks off midway": {good, func(w http.ResponseWriter, r *http.Request, ours http.Handler) bool {
			if !part(r, "blobs") {
				return false
			}
			record := httptest.NewRecorder()
			ours.ServeHTTP(record, r)
			_, _ = w.Write(record.Body.Bytes()[:record.Body.Len()/2])
			panic(http.ErrAbortHandler)
		}, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVendor(t)
			v.push(t, test.content)
			v.answer = test.answer
			c := pinned(t, pin)
			if strings.Contains(test.want, "stalled") {
				c.stallsAfter = 200 * time.Millisecond
			}
			began := time.Now()
			err := c.Take(t.Context(), ref, v.at(t, pin))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			var stalled *StalledError
			if errors.As(err, &stalled) != strings.Contains(test.want, "stalled") {
				t.Errorf("%v: is it a stalled download?", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			if held, err := c.Published([]string{ref}); err != nil || len(held) > 0 {
				t.Errorf("the cache holds %v, %v", held, err)
			}
			// What is left must not be taken for the vendor's, nor stand in the way.
			if damaged, err := c.Verify(t.Context()); err != nil || len(damaged) > 0 {
				t.Errorf("damaged: %v, %v", damaged, err)
			}
			v.answer = nil
			v.push(t, good)
			if err := c.Take(t.Context(), ref, v.at(t, pin)); err != nil {
				t.Errorf("the second time: %v", err)
			}
			if damaged, err := c.Verify(t.Context()); err != nil || len(damaged) > 0 {
				t.Errorf("damaged the second time: %v, %v", damaged, err)
			}
		})
	}
}

// An image of another architecture is refused, and so is a digest that is not the pinned one.
func TestTakeRefusesOthers(t *testing.T) {
	v := newVendor(t)
	pin := v.push(t, image(t, "s390x"))
	c := pinned(t, pin)
	if err := c.Take(t.Context(), "p.dev/p:1", v.at(t, pin)); err == nil || !strings.Contains(err.Error(), "it is for linux/s390x") {
		t.Errorf("another architecture: %v", err)
	}
	other := v.push(t, image(t, runtime.GOARCH))
	if err := c.Take(t.Context(), "p.dev/p:1", v.at(t, other)); err == nil || !strings.Contains(err.Error(), "is not the pinned digest of p.dev/p:1") {
		t.Errorf("another digest: %v", err)
	}
}

// The cache compares what it stores by itself, whatever the client has compared.
func TestPutBlob(t *testing.T) {
	c := open(t, newRoot(t, tiny)).cache
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	digest, size, err := v1.SHA256(strings.NewReader("good"))
	if err != nil {
		t.Fatal(err)
	}
	d := v1.Descriptor{Digest: digest, Size: size}
	// A rename does not leave the file system of the cache.
	tmp := filepath.Join(c.dir, "tmp")
	if err := c.putBlob(tmp, strings.NewReader("evil"), d); err == nil || !strings.Contains(err.Error(), "has the content of") {
		t.Errorf("another content: %v", err)
	}
	if _, err := os.Stat(c.blob(digest)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is stored under the digest: %v", err)
	}
	if err := c.putBlob(tmp, strings.NewReader("good"), d); err != nil {
		t.Error(err)
	}
}

// A new pin makes what was taken by the old one as good as not there.
func TestNewPin(t *testing.T) {
	const ref = "p.dev/p:1"
	v := newVendor(t)
	old := v.push(t, image(t, runtime.GOARCH))
	c := pinned(t, old)
	if err := c.Take(t.Context(), ref, v.at(t, old)); err != nil {
		t.Fatal(err)
	}
	if err := c.WritePins(map[string]v1.Hash{ref: v.push(t, image(t, runtime.GOARCH))}); err != nil {
		t.Fatal(err)
	}
	again := open(t, c.root)
	if held, err := again.Published([]string{ref}); err != nil || len(held) > 0 {
		t.Errorf("%v, %v", held, err)
	}
	if held, err := c.Published([]string{ref}); err != nil || len(held) != 1 {
		t.Errorf("a catalogue that was open before: %v, %v", held, err)
	}
}

// An image that is gone from the cache is not built in the vendor's place.
func TestTakenImageIsGone(t *testing.T) {
	const ref = "p.dev/p:1"
	v := newVendor(t)
	pin := v.push(t, image(t, runtime.GOARCH))
	c := pinned(t, pin)
	with := c.With(map[string]Published{ref: {Pin: pin, Digest: pin, From: v.host}})
	if _, err := with.Build(t.Context(), []string{ref}, nil); err == nil || !strings.Contains(err.Error(), "is no longer in the cache") {
		t.Errorf("%v", err)
	}
}

func TestBadPins(t *testing.T) {
	digest := "sha256:" + strings.Repeat("1", 64)
	for text, want := range map[string]string{
		"x.dev/a:1\n":                   `published.txt:1: "x.dev/a:1": expected NAME:TAG and a digest`,
		"\n#\nx.dev/a:1 " + digest[:70]: "published.txt:3: ",
		"x.dev/a " + digest:             "published.txt:1: ",
		"x.dev/a:1 " + digest + "\nx.dev/b:1 " + digest + "\nx.dev/b:1 " + digest: "published.txt:3: x.dev/b:1 is pinned twice",
		"x.dev/c:1 " + digest:                          "published.txt:1: no recipe makes x.dev/c:1",
		"x.dev/b:1 sha512:" + strings.Repeat("1", 128): "expected a sha256 digest",
	} {
		files := maps.Clone(tiny)
		files["published.txt"] = text
		if _, err := Open(newRoot(t, files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	files := maps.Clone(tiny)
	files["published.txt"] = "x.dev/a:1 " + digest
	if _, err := Open(newRoot(t, files)); err == nil || !strings.Contains(err.Error(), "published.txt:1: x.dev/b:1 is built on x.dev/a:1") {
		t.Errorf("a base: %v", err)
	}
}
