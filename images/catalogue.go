// Package images is the image factory: it builds every container image of a lab from pinned Go
// modules and Debian packages, without a container engine and without a container registry, keeps
// the images in a cache on this machine, and hands them on to a lab's registry or to the Docker
// engine. The README of its folder has the fields of recipes, and what keys are made of.
package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/mod/module"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/topology/status"
)

// Catalogue is the set of images that the recipes of one source tree describe, together with the cache they are built
// into. Its methods may be called at the same time, from several processes as well. An image's inputs are read once,
// when a method first needs them: what Push hands on is what Build built, regardless of edits in between.
type Catalogue struct {
	root       string
	components []*component
	refs       []string // of the catalogue, in order of build: an image comes after its base
	cache      *cache

	recipesMu sync.Mutex
	recipes   map[string]*Recipe // by ref

	mu       sync.Mutex
	keyByRef map[string]string // keys by ref, each worked out once
}

// Open reads the recipes below images/ of the source tree at root. The error lists all that is wrong with them, by file
// and field. Recipes are read from the tree and not embedded, because go:embed takes nothing from folders that are
// modules of their own. Images are kept in relapse/images in the user's cache folder ($XDG_CACHE_HOME, or ~/.cache).
func Open(root string) (*Catalogue, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("choosing the image cache's folder: %w", err)
	}
	return openIn(filepath.Join(user, "relapse", "images"), root)
}

func openIn(cacheDir, root string) (*Catalogue, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("opening image recipes: %w", err)
	}
	c := &Catalogue{root: root, recipes: map[string]*Recipe{}, keyByRef: map[string]string{}, cache: &cache{dir: cacheDir}}
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
			errs, recipes = append(errs, err), nil
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
	if err := errors.Join(append(errs, c.order()...)...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Catalogue) readFolder(folder string) ([]*Recipe, error) {
	all, err := readFolder(folder)
	if err != nil {
		return nil, err
	}
	described := &component{folder: folder, builds: map[string]*versionBuild{}}
	if there, err := readYAML(filepath.Join(folder, componentFile), described); err != nil || !there {
		return all, err
	}
	c.components = append(c.components, described)
	versions, errs := described.recipes()
	return append(all, versions...), errors.Join(errs...)
}

// readYAML reads recipes from a file; false if it is not there.
func readYAML(file string, into any) (there bool, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading recipes: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	return true, nil
}

// Recipe returns the recipe of the image ref. It is bad input if there is none.
func (c *Catalogue) Recipe(ref string) (*Recipe, error) {
	c.recipesMu.Lock()
	defer c.recipesMu.Unlock()
	if r := c.recipes[ref]; r != nil {
		return r, nil
	}
	return nil, status.Input("no recipe makes image %q; there are %s", ref, strings.Join(slices.Sorted(maps.Keys(c.recipes)), ", "))
}

// order fills c.refs, bases first, and returns why an image cannot be built.
func (c *Catalogue) order() []error {
	var errs []error
	refs := slices.Sorted(maps.Keys(c.recipes))
	for _, ref := range refs {
		r := c.recipes[ref]
		if _, err := c.Recipe(r.Base); r.Base != "" && err != nil {
			errs = append(errs, r.wrong("base", "%v", err))
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

// closure returns the refs and the bases they need, in order of build.
func (c *Catalogue) closure(refs []string) ([]string, error) {
	var needed []string
	var errs []error
	var add func(ref string)
	add = func(ref string) {
		if slices.Contains(needed, ref) {
			return
		}
		r, err := c.Recipe(ref)
		if err != nil {
			errs = append(errs, err)
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

// List returns all images, each after its base, and whether the cache holds them as the recipes are now.
func (c *Catalogue) List(ctx context.Context) ([]Entry, error) {
	keys, err := c.keys(ctx, c.refs)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(c.refs))
	for _, ref := range c.refs {
		r, _ := c.Recipe(ref)
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

// Compile builds the programs of an image into a folder, as they would be in the image, and returns
// their files in the order of the recipe. No image is made: it needs no root.
func (c *Catalogue) Compile(ctx context.Context, ref, dir string) ([]string, error) {
	r, err := c.ready(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := c.cache.prepare(); err != nil { // it takes the build's log
		return nil, err
	}
	compiler := newCompiler(c.cache, dir)
	compiler.plan(r)
	built, err := compiler.compile(ctx, r, func(Event) {})
	if err != nil {
		return nil, err
	}
	return built.files, r.provePrograms(built.files)
}

// Derive asks the module proxy for what an image is built from, and builds nothing. What is not available is a
// *NotPublishedError or an *UnreachableError.
func (c *Catalogue) Derive(ctx context.Context, ref string) error {
	if err := c.cache.prepare(); err != nil { // it keeps what is derived
		return err
	}
	_, err := c.ready(ctx, ref)
	return err
}

func (c *Catalogue) ready(ctx context.Context, ref string) (*Recipe, error) {
	r, err := c.Recipe(ref)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return r, c.derive(ctx, r)
}

// TestedModule is a module of a vendor from which a program of an image was built.
type TestedModule struct {
	Ref string // the image
	module.Version
	// Sum is the checksum in go.sum that the go command has held the module to: "h1:" and a
	// SHA-256. It is part of the image's key, so that an image in the cache is of this one.
	Sum string
	// With is Recipe.Differs of the image.
	With string
}

// TestedModules returns the vendors' modules that programs of images were built from, in
// the order of the images. An image without such a program has none.
func (c *Catalogue) TestedModules(ctx context.Context, refs []string) ([]TestedModule, error) {
	var all []TestedModule
	for _, ref := range refs {
		r, err := c.ready(ctx, ref)
		if err != nil {
			return nil, err
		}
		with, err := r.Differs()
		if err != nil {
			return nil, err
		}
		for _, p := range r.Programs {
			tested, err := r.tests(p)
			if err != nil {
				return nil, err
			}
			if tested.Path == "" {
				continue
			}
			sums, err := r.module(p.In).checksums()
			if err != nil {
				return nil, fmt.Errorf("reading the checksums of %s: %w", ref, err)
			}
			one := TestedModule{ref, tested, sums[tested.Path+" "+tested.Version], with}
			if !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all, nil
}
