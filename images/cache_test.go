package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// first is the file that both images of tiny are made of: a change of it gives both another key.
const first = "a/etc/first"

// cacheOfThreeStates holds tiny in three states, six images: the catalogue describes the last state.
func cacheOfThreeStates(t *testing.T) *Catalogue {
	t.Helper()
	root := newRoot(t, tiny)
	var c *Catalogue
	for _, state := range []string{"1", "2", "3"} {
		must.Write(t, filepath.Join(root, "images", first), state)
		c = open(t, root)
		mustBuild(t, c, "x.dev/a:1", "x.dev/b:1")
	}
	return c
}

func contents(t *testing.T, c *Catalogue) (images int, bytes int64) {
	t.Helper()
	return len(must.Get(c.cache.entries())(t)), must.Get(diskUse(c.cache.layouts()))(t)
}

func TestPrune(t *testing.T) {
	c := cacheOfThreeStates(t)
	_, before := contents(t, c)
	p := must.Get(c.Prune(t.Context()))(t)
	if images, bytes := contents(t, c); images != 2 || len(p.Images) != 4 || bytes != p.Kept || before-bytes != p.Freed || p.Freed == 0 || p.Builds != 0 {
		t.Errorf("%d images with %d of %d bytes are left; told %+v", images, bytes, before, p)
	}
	// What is left is what the catalogue needs.
	must.Equal(t, "built", 0, len(must.Get(c.Build(t.Context(), []string{"x.dev/b:1"}, nil))(t).Built))
}

func TestPruneRemovesWhatInterruptedBuildsLeft(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	mustBuild(t, c, "x.dev/b:1")
	killed := filepath.Join(c.cache.dir, "tmp", "build-killed")
	must.NoError(t, os.Mkdir(killed, 0o755))
	p := must.Get(c.Prune(t.Context()))(t)
	must.Equal(t, "builds and images", [2]int{1, 0}, [2]int{p.Builds, len(p.Images)})
	must.Is(t, must.Err(os.Stat(killed)), os.ErrNotExist)
}

func TestPruneRemovesDamagedImages(t *testing.T) {
	c := open(t, newRoot(t, tiny))
	built := builtEntry(t, c, "x.dev/b:1")
	must.NoError(t, os.Remove(built.blob(built.manifest.Layers[1].Digest)))
	must.Equal(t, "removed, and not its base", []string{"x.dev/b:1"}, must.Get(c.Prune(t.Context()))(t).Images)
}

func TestPruneRefusesWhileImagesAreBuilt(t *testing.T) {
	c := cacheOfThreeStates(t)
	running, remove, err := c.cache.workspace(t.Context())
	must.NoError(t, err)
	defer remove()
	before, _ := contents(t, c)
	must.Fail(t, must.Err(c.Prune(t.Context())), "images are being built in "+running)
	remaining, _ := contents(t, c)
	must.Equal(t, "images", before, remaining)
}
