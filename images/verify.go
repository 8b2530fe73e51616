package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Damage is an image of the cache whose content is not what its digests say.
type Damage struct {
	Ref    string
	Digest v1.Hash // the manifest's
	Err    error   // the first blob found wrong, and how
}

// Verify reads the whole cache and compares every blob with its digest. What
// is damaged is forgotten, so that the next Build makes it again.
func (c *Catalogue) Verify(ctx context.Context) ([]Damage, error) {
	x, err := c.cache.index()
	if err != nil {
		return nil, err
	}
	var damages []Damage
	checked := map[v1.Hash]error{} // layers are shared
	for _, entry := range x.Manifests {
		if err := c.cache.verify(ctx, entry.Digest, checked); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("verifying the image cache: %w", context.Cause(ctx))
			}
			damages = append(damages, Damage{entry.Annotations[annotationRef], entry.Digest, err})
		}
	}
	if len(damages) == 0 {
		return nil, nil
	}
	err = c.cache.update(ctx, func(x *index) {
		x.Manifests = slices.DeleteFunc(x.Manifests, func(d v1.Descriptor) bool {
			return slices.ContainsFunc(damages, func(bad Damage) bool { return bad.Digest == d.Digest })
		})
	})
	for digest, err := range checked {
		if err != nil {
			_ = os.Remove(c.cache.blob(digest)) // nothing names it any more
		}
	}
	return damages, err
}

// verify checks an image's blobs; checked remembers the results.
func (c *cache) verify(ctx context.Context, digest v1.Hash, checked map[v1.Hash]error) error {
	check := func(d v1.Hash) error {
		if _, done := checked[d]; !done {
			checked[d] = c.verifyBlob(ctx, d)
		}
		return checked[d]
	}
	if err := check(digest); err != nil {
		return err
	}
	manifest, err := c.manifest(digest)
	if err != nil {
		return err
	}
	errs := []error{check(manifest.Config.Digest)}
	for _, layer := range manifest.Layers {
		errs = append(errs, check(layer.Digest))
	}
	return errors.Join(errs...)
}

func (c *cache) verifyBlob(ctx context.Context, digest v1.Hash) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := os.Open(c.blob(digest))
	if err != nil {
		return err
	}
	defer f.Close()
	found, _, err := v1.SHA256(f)
	if err != nil {
		return err
	}
	if found != digest {
		return fmt.Errorf("blob %s has the content of %s", digest, found)
	}
	return nil
}
