package images

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// first is the file that both images of tiny are made of: a change of it gives
// both another key.
const first = "a/etc/first"

// cacheOfThreeStates is a cache that holds tiny in three states of its recipes,
// the last of which the catalogue describes: six images, of which x.dev/a:1 of
// the first state was used last.
func cacheOfThreeStates(t *testing.T) *Catalogue {
	t.Helper()
	root := newRoot(t, tiny)
	refs := []string{"x.dev/a:1", "x.dev/b:1"}
	in := func(state string) *Catalogue {
		if err := os.WriteFile(filepath.Join(root, "images", first), []byte(state), 0o644); err != nil {
			t.Fatal(err)
		}
		return open(t, root)
	}
	var built []v1.Hash
	for _, state := range []string{"1", "2", "3"} {
		digests := mustBuild(t, in(state), refs...)
		built = append(built, digests[refs[0]], digests[refs[1]])
	}
	c := in("1")
	for i, digest := range built {
		used := time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC)
		if err := os.Chtimes(c.cache.blob(digest), used, used); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Digests(t.Context(), refs[:1]); err != nil {
		t.Fatal(err)
	}
	return in("3")
}

// held are the images of the index and the size of all blobs.
func held(t *testing.T, c *Catalogue) (images int, bytes int64) {
	t.Helper()
	x, err := c.cache.index()
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := os.ReadDir(filepath.Join(c.cache.dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		info, err := b.Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes += info.Size()
	}
	return len(x.Manifests), bytes
}

func TestPrune(t *testing.T) {
	c := cacheOfThreeStates(t)
	_, all := held(t, c)
	for _, test := range []struct {
		name string
		keep int64
		want []string // removed, in order
	}{
		{"all fit", all, nil},
		{"one too many: the least recently used goes", all - 1, []string{"x.dev/b:1"}},
		{"none may stay: the catalogue's do", 0, []string{"x.dev/a:1", "x.dev/b:1", "x.dev/a:1"}}, // the oldest is the last
	} {
		before, size := held(t, c)
		p, err := c.Prune(t.Context(), test.keep)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		var got []string
		for i, image := range p.Images {
			got = append(got, image.Ref)
			size -= image.Bytes
			if i > 0 && image.Used.Before(p.Images[i-1].Used) {
				t.Errorf("%s: %s was used before the one that went first", test.name, image.Ref)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: removed (-want +got):\n%s", test.name, diff)
		}
		images, bytes := held(t, c)
		if images != before-len(test.want) || bytes != size || bytes != p.Kept || p.Unnamed != 0 || p.Builds != 0 {
			t.Errorf("%s: %d images with %d bytes are left, want %d with %d; told %+v",
				test.name, images, bytes, before-len(test.want), size, p)
		}
	}
	// What is left is whole, and is what the catalogue needs.
	if damages, err := c.Verify(t.Context()); err != nil || len(damages) > 0 {
		t.Errorf("damaged: %v, %v", damages, err)
	}
	if summary, err := c.Build(t.Context(), []string{"x.dev/b:1"}, nil); err != nil || len(summary.Built) > 0 {
		t.Errorf("%+v, %v; want nothing to build", summary, err)
	}
}

func TestPruneRemovesWhatInterruptedBuildsLeft(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	digest := mustBuild(t, c, "x.dev/b:1")["x.dev/b:1"]
	killed := filepath.Join(c.cache.dir, "tmp", "build-killed")
	orphan := c.cache.blob(v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)})
	if err := errors.Join(os.Mkdir(killed, 0o755), os.WriteFile(orphan, make([]byte, 100), 0o600)); err != nil {
		t.Fatal(err)
	}
	p, err := c.Prune(t.Context(), 1<<40)
	if err != nil || p.Builds != 1 || p.Unnamed != 100 || len(p.Images) > 0 {
		t.Errorf("%+v, %v; want one build, 100 bytes and no image", p, err)
	}
	for _, path := range []string{killed, orphan} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if again := mustBuild(t, c, "x.dev/b:1")["x.dev/b:1"]; again != digest {
		t.Errorf("the image is %s, was %s", again, digest)
	}
}

func TestPruneRemovesDamagedImages(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	digest := mustBuild(t, c, "x.dev/b:1")["x.dev/b:1"]
	manifest, err := c.cache.manifest(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.cache.blob(manifest.Layers[1].Digest)); err != nil {
		t.Fatal(err)
	}
	p, err := c.Prune(t.Context(), 1<<40)
	if err != nil || !slices.EqualFunc(p.Images, []string{"x.dev/b:1"}, func(i PrunedImage, ref string) bool { return i.Ref == ref }) {
		t.Errorf("%+v, %v; want x.dev/b:1 removed, and its base left", p, err)
	}
}

func TestPruneRefusesWhileImagesAreBuilt(t *testing.T) {
	c := cacheOfThreeStates(t)
	running, remove, err := c.cache.workspace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	before, _ := held(t, c)
	var busy *BusyError
	if _, err := c.Prune(t.Context(), 0); !errors.As(err, &busy) || busy.Folder != running {
		t.Errorf("%v; want a *BusyError that names %s", err, running)
	}
	if after, _ := held(t, c); after != before {
		t.Errorf("%d images, before it were %d", after, before)
	}
}
