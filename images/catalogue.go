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
// the same time, from several processes as well. An image's inputs are read
// once, when a method first needs them: what Push hands on is what Build built,
// regardless of edits in between.
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

// readFolder reads the recipes of a folder.
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

// recipe returns the recipe of a ref: of the catalogue, or of another version
// that At has been asked for.
func (c *Catalogue) recipe(ref string) (*Recipe, bool) {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	r, ok := c.recipes[ref]
	return r, ok
}

// UnknownVersionError says that no recipe builds a version of a component, or, where
// it names no version, any.
type UnknownVersionError struct {
	Name, Version string
	// Known says which versions there are; where no component has the name, which
	// components.
	Known []string
	// Why says what the version has not got, where that is known; else it is empty.
	Why string
}

func (e *UnknownVersionError) Error() string {
	if e.Version == "" {
		return fmt.Sprintf("no recipe builds a component %q; there are %s", e.Name, strings.Join(e.Known, ", "))
	}
	why := e.Why
	if why != "" {
		why = ": " + why
	}
	return fmt.Sprintf("no recipe builds %s at version %s%s; there are %s", e.Name, e.Version, why, strings.Join(e.Known, ", "))
}

// At returns the refs of all images that hold a component at a version, or of
// one image, when name is its ref without the tag. The version need not be one
// of the catalogue: from here on the catalogue knows the refs, and Build derives
// what such a version requires from the vendor's own go.mod. The error is an
// *UnknownVersionError if the version is in no recipe's range.
func (c *Catalogue) At(name, version string) ([]string, error) {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	var (
		refs, known, components []string
		why                     string
	)
	matches := func(r *Recipe) bool {
		components = append(components, r.Component)
		return r.Component == name && name != "" || strings.HasPrefix(r.Ref, name+":")
	}
	for _, ref := range c.refs {
		r := c.recipes[ref]
		if !matches(r) {
			continue
		}
		if r.Version == version {
			refs = append(refs, ref)
		}
		if r.build == nil {
			known = append(known, r.Version)
		}
	}
	for _, described := range c.components {
		for _, l := range described.Lacking {
			if strings.HasPrefix(l.Ref, name+":") && l.contain(version) {
				why = l.Why
			}
		}
		for _, image := range described.Images {
			if !matches(&image.Recipe) {
				continue
			}
			known = append(known, fmt.Sprintf("those from %s and below %s", image.From, image.Below))
			if !image.contain(version) {
				continue
			}
			r, err := described.recipe(image, version)
			if err != nil {
				return nil, err
			}
			if c.recipes[r.Ref] == nil {
				c.recipes[r.Ref] = r
			}
			if !slices.Contains(refs, r.Ref) { // else it is the catalogue's
				refs = append(refs, r.Ref)
			}
		}
	}
	switch {
	case len(refs) > 0:
		return refs, nil
	case len(known) == 0:
		known = components
	}
	slices.Sort(known)
	known = slices.DeleteFunc(slices.Compact(known), func(k string) bool { return k == "" })
	return nil, &UnknownVersionError{Name: name, Version: version, Known: known, Why: why}
}

// order fills c.refs, bases first, and returns why an image cannot be built.
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
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	return &UnknownImageError{Ref: ref, Known: slices.Sorted(maps.Keys(c.recipes))}
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

// Refs lists all images, bases before those built on them.
func (c *Catalogue) Refs() []string { return slices.Clone(c.refs) }

// Recipe returns the recipe of the image ref, or an *UnknownImageError.
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
	// Size is that of all its layers in bytes, shared ones included.
	Size int64
	// Cost is what building it took; zero if that was not kept.
	Cost Cost
}

// List returns all images, bases before those built on them, and whether the
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
			entry.Digest, entry.Cost = found.Digest, costOf(found.Descriptor)
			for _, layer := range found.manifest.Layers {
				entry.Size += layer.Size
			}
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
