package images

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/mod/module"
)

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
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []TestedModule
	for _, ref := range refs {
		r, known := c.recipe(ref)
		if !known {
			return nil, c.unknown(ref)
		}
		if err := c.derive(ctx, r); err != nil {
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
