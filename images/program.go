package images

import (
	"context"
	"fmt"
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

// Source returns the folder in Go's module cache with the vendor's sources of
// the component that an image holds, and downloads them if need be.
func (c *Catalogue) Source(ctx context.Context, ref string) (string, error) {
	r, err := c.ready(ctx, ref)
	if err != nil {
		return "", err
	}
	for _, p := range r.Programs {
		if tested, err := r.tests(p); err == nil && tested.Path != "" && tested.Path == r.Module {
			return r.module(p.In).source(ctx, r.Module)
		}
	}
	return "", fmt.Errorf("image %s holds no program of a vendor's Go module", ref)
}

func (c *Catalogue) ready(ctx context.Context, ref string) (*Recipe, error) {
	r, ok := c.recipe(ref)
	if !ok {
		return nil, c.unknown(ref)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return r, c.derive(ctx, r)
}
