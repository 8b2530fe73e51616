package images

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// first is the file that both images of tiny are made of: a change of it gives both another key.
const first = "a/etc/first"

// cacheOfThreeStates is a cache that holds tiny in three states of its recipes, the last of which
// the catalogue describes: six images, of which x.dev/a:1 of the first state was used last.
func cacheOfThreeStates(t *testing.T) *Catalogue {
	t.Helper()
	root := newRoot(t, tiny)
	refs := []string{"x.dev/a:1", "x.dev/b:1"}
	in := func(state string) *Catalogue {
		must.Write(t, filepath.Join(root, "images", first), state)
		return open(t, root)
	}
	var built []string
	for _, state := range []string{"1", "2", "3"} {
		c := in(state)
		for _, ref := range refs {
			built = append(built, string(builtEntry(t, c, ref).Path))
		}
	}
	c := in("1")
	for i, layout := range built {
		used := time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC)
		must.NoError(t, os.Chtimes(layout, used, used))
	}
	must.Get(c.Digests(t.Context(), refs[:1]))(t)
	return in("3")
}

func held(t *testing.T, c *Catalogue) (images int, bytes int64) {
	t.Helper()
	entries, err := c.cache.entries()
	must.NoError(t, err)
	if bytes, err = diskUse(c.cache.layouts()); err != nil {
		t.Fatal(err)
	}
	return len(entries), bytes
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
		must.Equal(t, test.name, test.want, got)
		images, bytes := held(t, c)
		if images != before-len(test.want) || bytes != size || bytes != p.Kept || p.Builds != 0 {
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
	mustBuild(t, c, "x.dev/b:1")
	killed := filepath.Join(c.cache.dir, "tmp", "build-killed")
	must.NoError(t, os.Mkdir(killed, 0o755))
	p, err := c.Prune(t.Context(), 1<<40)
	if err != nil || p.Builds != 1 || len(p.Images) > 0 {
		t.Errorf("%+v, %v; want one build and no image", p, err)
	}
	if _, err := os.Stat(killed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", killed, err)
	}
}

func TestPruneRemovesDamagedImages(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	built := builtEntry(t, c, "x.dev/b:1")
	must.NoError(t, os.Remove(built.blob(built.manifest.Layers[1].Digest)))
	p, err := c.Prune(t.Context(), 1<<40)
	if err != nil || !slices.EqualFunc(p.Images, []string{"x.dev/b:1"}, func(i PrunedImage, ref string) bool { return i.Ref == ref }) {
		t.Errorf("%+v, %v; want x.dev/b:1 removed, and its base left", p, err)
	}
}

func TestPruneRefusesWhileImagesAreBuilt(t *testing.T) {
	c := cacheOfThreeStates(t)
	running, remove, err := c.cache.workspace(t.Context())
	must.NoError(t, err)
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
