package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/relapse-dev/relapse/topology/status"
)

// Catalogue is the set of images that the recipes of one source tree describe, together with the
// cache they are built into. Its methods may be called at the same time, from several processes as
// well. An image's inputs are read once, when a method first needs them: what Push hands on is what
// Build built, regardless of edits in between.
type Catalogue struct {
	root       string
	components []*component
	refs       []string // of the catalogue, in order of build: an image comes after its base
	cache      *cache

	recipesMu sync.Mutex
	recipes   map[string]*Recipe // by ref

	mu    sync.Mutex
	known map[string]string // keys by ref, each worked out once
}

// Open reads the recipes below images/ of the source tree at root. The error lists everything that
// is wrong with them, each with its file and field. Recipes are read from the tree and not
// embedded, because go:embed takes nothing from folders that are modules of their own. Images are
// kept in relapse/images in the user's cache folder ($XDG_CACHE_HOME, or ~/.cache).
func Open(root string) (*Catalogue, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("choosing the image cache's folder: %w", err)
	}
	return openIn(filepath.Join(user, "relapse", "images"), root)
}

func openIn(kept, root string) (*Catalogue, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("opening image recipes: %w", err)
	}
	c := &Catalogue{root: root, recipes: map[string]*Recipe{}, known: map[string]string{}, cache: &cache{dir: kept}}
	folders, err := os.ReadDir(filepath.Join(root, "images"))
	if err != nil {
		return nil, fmt.Errorf("reading image recipes: %w", err)
	}
	var errs []error
	for _, folder := range folders {
		if !folder.IsDir() {
			continue
		}
		recipes, err := c.readFolder(filepath.Join(root, "images", folder.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, r := range recipes {
			errs = append(errs, r.validate()...)
			if other, ok := c.recipes[r.Ref]; ok {
				errs = append(errs, r.wrong("ref", "also in %s", other.file()))
				continue
			}
			c.recipes[r.Ref] = r
		}
	}
	errs = append(errs, c.order()...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

func (c *Catalogue) readFolder(folder string) ([]*Recipe, error) {
	own, err := readFolder(folder)
	if err != nil {
		return nil, err
	}
	component, err := readComponent(folder)
	if err != nil || component == nil {
		return own, err
	}
	c.components = append(c.components, component)
	versions, err := component.recipes()
	return append(own, versions...), err
}

func (c *Catalogue) recipe(ref string) (*Recipe, bool) {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	r, ok := c.recipes[ref]
	return r, ok
}

// order fills c.refs, bases first, and returns why an image cannot be built.
func (c *Catalogue) order() []error {
	var errs []error
	refs := slices.Sorted(maps.Keys(c.recipes))
	for _, ref := range refs {
		r := c.recipes[ref]
		if r.Base != "" && c.recipes[r.Base] == nil {
			errs = append(errs, r.wrong("base", "%v", c.unknown(r.Base)))
		}
		base := c.recipes[r.Base]
		for range refs {
			if base == r {
				return append(errs, r.wrong("base", "%s is built on this image in turn", r.Base))
			}
			if base != nil {
				base = c.recipes[base.Base]
			}
		}
	}
	if len(errs) == 0 {
		c.refs, _ = c.closure(refs)
	}
	return errs
}

func (c *Catalogue) unknown(ref string) error {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	return status.Input("no recipe makes image %q; there are %s", ref, strings.Join(slices.Sorted(maps.Keys(c.recipes)), ", "))
}

// closure returns the refs and the bases they need, in order of build.
func (c *Catalogue) closure(refs []string) ([]string, error) {
	var needed []string
	var errs []error
	var add func(ref string)
	add = func(ref string) {
		if slices.Contains(needed, ref) {
			return
		}
		r, ok := c.recipe(ref)
		if !ok {
			errs = append(errs, c.unknown(ref))
			return
		}
		if r.Base != "" {
			add(r.Base)
		}
		needed = append(needed, ref)
	}
	for _, ref := range refs {
		add(ref)
	}
	return needed, errors.Join(errs...)
}

// CacheDir is the folder that holds the built images.
func (c *Catalogue) CacheDir() string { return c.cache.dir }

// Refs lists all images, each after its base.
func (c *Catalogue) Refs() []string { return slices.Clone(c.refs) }

// Recipe returns the recipe of the image ref. It is bad input if there is none.
func (c *Catalogue) Recipe(ref string) (Recipe, error) {
	r, ok := c.recipe(ref)
	if !ok {
		return Recipe{}, c.unknown(ref)
	}
	return *r, nil
}

// Entry is one image of the catalogue as List shows it.
type Entry struct {
	Ref       string
	Component string
	Version   string
	Form      Form
	// Digest is the manifest's; zero if the image has to be built.
	Digest v1.Hash
	// Size is the size of all its layers in bytes, shared ones included.
	Size int64
}

// List returns all images, each after its base, and whether the
// cache holds them as the recipes are now.
func (c *Catalogue) List(ctx context.Context) ([]Entry, error) {
	keys, err := c.keys(ctx, c.refs)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(c.refs))
	for _, ref := range c.refs {
		r, _ := c.recipe(ref)
		entry := Entry{Ref: ref, Component: r.Component, Version: r.Version, Form: r.Form}
		if found := c.cache.entry(keys[ref]); found.damage == nil {
			entry.Digest = found.Digest
			for _, layer := range found.manifest.Layers {
				entry.Size += layer.Size
			}
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
