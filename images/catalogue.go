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
)

// Catalogue is the set of images that the recipes of one source tree describe,
// together with the cache they are built into. Its methods may be called at
// the same time, from several processes as well. An image's inputs are looked at
// once, when a method first needs them: what Push hands on is what Build built,
// whatever is edited in between.
type Catalogue struct {
	root    string
	recipes map[string]*Recipe // by ref
	refs    []string           // in order of build: an image comes after its base
	cache   *cache

	mu    sync.Mutex
	known map[string]string // keys by ref, each worked out once
}

// Option changes how Open opens a catalogue.
type Option func(*Catalogue)

// WithCache keeps images in the folder dir in place of relapse/images in the
// user's cache folder ($XDG_CACHE_HOME, or ~/.cache).
func WithCache(dir string) Option {
	return func(c *Catalogue) { c.cache = &cache{dir: dir} }
}

// Open reads the recipes below images/ of the source tree at root. The error
// lists everything that is wrong with them, each with its file and field.
// Recipes are read from the tree and not embedded, because go:embed takes
// nothing from folders that are modules of their own.
func Open(root string, options ...Option) (*Catalogue, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("opening image recipes: %w", err)
	}
	c := &Catalogue{root: root, recipes: map[string]*Recipe{}, known: map[string]string{}}
	for _, option := range options {
		option(c)
	}
	if c.cache == nil {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("choosing the image cache's folder: %w", err)
		}
		c.cache = &cache{dir: filepath.Join(user, "relapse", "images")}
	}
	folders, err := os.ReadDir(filepath.Join(root, "images"))
	if err != nil {
		return nil, fmt.Errorf("reading image recipes: %w", err)
	}
	var errs []error
	for _, folder := range folders {
		if !folder.IsDir() {
			continue
		}
		recipes, err := readFolder(filepath.Join(root, "images", folder.Name()))
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

// order fills c.refs, bases first, and returns what stands in the way.
func (c *Catalogue) order() []error {
	var errs []error
	const (
		visiting = 1
		done     = 2
	)
	state := map[string]int{}
	var visit func(ref string)
	visit = func(ref string) {
		r := c.recipes[ref]
		state[ref] = visiting
		if r.Base != "" {
			switch _, known := c.recipes[r.Base]; {
			case !known:
				errs = append(errs, r.wrong("base", "%v", c.unknown(r.Base)))
			case state[r.Base] == visiting:
				errs = append(errs, r.wrong("base", "%s is built on this image in turn", r.Base))
			case state[r.Base] == 0:
				visit(r.Base)
			}
		}
		state[ref] = done
		c.refs = append(c.refs, ref)
	}
	for _, ref := range slices.Sorted(maps.Keys(c.recipes)) {
		if state[ref] == 0 {
			visit(ref)
		}
	}
	return errs
}

// UnknownImageError says that no recipe makes the image Ref.
type UnknownImageError struct {
	Ref   string
	Known []string
}

func (e *UnknownImageError) Error() string {
	return fmt.Sprintf("no recipe makes image %q; there are %s", e.Ref, strings.Join(e.Known, ", "))
}

func (c *Catalogue) unknown(ref string) error {
	return &UnknownImageError{Ref: ref, Known: slices.Sorted(maps.Keys(c.recipes))}
}

// closure returns the refs and the bases they need, in order of build.
func (c *Catalogue) closure(refs []string) ([]string, error) {
	need := map[string]bool{}
	var errs []error
	for _, ref := range refs {
		r, ok := c.recipes[ref]
		if !ok {
			errs = append(errs, c.unknown(ref))
			continue
		}
		for ; r != nil && !need[r.Ref]; r = c.recipes[r.Base] {
			need[r.Ref] = true
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(c.refs), func(ref string) bool { return !need[ref] }), nil
}

// CacheDir is the folder that holds the built images.
func (c *Catalogue) CacheDir() string { return c.cache.dir }

// Recipe returns the recipe of the image ref, or an *UnknownImageError.
func (c *Catalogue) Recipe(ref string) (Recipe, error) {
	r, ok := c.recipes[ref]
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
	// Size is that of all its layers in bytes, shared ones included.
	Size int64
}

// List returns all images, bases before those built on them, and whether the
// cache holds them as the recipes are now.
func (c *Catalogue) List(ctx context.Context) ([]Entry, error) {
	keys, err := c.keys(ctx, c.refs)
	if err != nil {
		return nil, err
	}
	index, err := c.cache.index()
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(c.refs))
	for _, ref := range c.refs {
		r := c.recipes[ref]
		entry := Entry{Ref: ref, Component: r.Component, Version: r.Version, Form: r.Form}
		if digest, ok := index.find(ref, keys[ref]); ok {
			if manifest, err := c.cache.manifest(digest); err == nil {
				entry.Digest = digest
				for _, layer := range manifest.Layers {
					entry.Size += layer.Size
				}
			}
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
