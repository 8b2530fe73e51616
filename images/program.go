package images

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/mod/module"
)

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

// Derive asks the module proxy for what an image is built from, and builds nothing. Its
// error is a *NotPublishedError or an *UnreachableError where that is not available.
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
