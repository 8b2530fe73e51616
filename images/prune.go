package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Pruned says what Prune did.
type Pruned struct {
	// Images are those that were removed, least recently used first.
	Images []PrunedImage
	// Builds is the number of killed builds whose folders were removed.
	Builds int
	// Unnamed is the size in bytes of the blobs that were removed because no
	// image named them: interrupted builds leave such.
	Unnamed int64
	// Kept is what the images that are left take, in bytes. It is more than was
	// asked for if the catalogue needs more.
	Kept int64
}

// PrunedImage is an image that was removed from the cache.
type PrunedImage struct {
	Ref    string
	Digest v1.Hash // the manifest's
	// Used is when the image was last built, pushed, loaded or found by Build.
	Used time.Time
	// Bytes is what its removal set free: layers that others share stay.
	Bytes int64
}

// BusyError says that the cache cannot be pruned because images are being
// built, by this process or another.
type BusyError struct {
	// Folder is a folder of such a build.
	Folder string
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("images are being built in %s: prune the cache when they are done", e.Folder)
}

// Prune removes images from the cache, least recently used first, until the
// others take no more than keep bytes, and with them what interrupted
// builds have left. Images that the catalogue describes as its recipes are now
// stay in any case; those of an earlier state of a recipe are fair game. It
// returns a *BusyError while images are being built, as their layers are in the
// cache before any image names them.
func (c *Catalogue) Prune(ctx context.Context, keep int64) (Pruned, error) {
	keys, err := c.keys(ctx, c.refs)
	if err != nil {
		return Pruned{}, err
	}
	if err := c.cache.prepare(); err != nil {
		return Pruned{}, err
	}
	unlock, err := c.cache.lock(ctx, "tmp", nil) // no build begins
	if err != nil {
		return Pruned{}, err
	}
	defer unlock()
	var p Pruned
	if p.Builds, err = c.cache.cleanIdle(); err != nil {
		return p, err
	}
	var left index
	err = c.cache.update(ctx, func(x *index) {
		p.Images, p.Kept = c.cache.choose(x, keys, keep)
		left = *x
	})
	if err != nil {
		return Pruned{Builds: p.Builds}, err
	}
	// Only now: what the index names has to be there, whenever this is killed.
	p.Unnamed, err = c.cache.sweep(&left)
	for _, i := range p.Images {
		p.Unnamed -= i.Bytes
	}
	return p, err
}

// cleanIdle removes the folders that killed builds have left, and returns how
// many. It returns a *BusyError if a build is under way.
func (c *cache) cleanIdle() (int, error) {
	tmp := filepath.Join(c.dir, "tmp")
	before, err := os.ReadDir(tmp)
	if err == nil {
		err = c.clean()
	}
	if err != nil {
		return 0, fmt.Errorf("removing what interrupted image builds left: %w", err)
	}
	running, err := os.ReadDir(tmp)
	if err != nil {
		return 0, fmt.Errorf("looking for image builds: %w", err)
	}
	if len(running) > 0 {
		return 0, &BusyError{Folder: filepath.Join(tmp, running[0].Name())}
	}
	return len(before), nil
}

// choose takes images out of the index until the blobs of the others take at
// most keep bytes, and returns those taken out and the size of what stays. An
// image stays if its key is the one that keys has for its ref; one that is
// damaged, and so of no use, goes first.
func (c *cache) choose(x *index, keys map[string]string, keep int64) (taken []PrunedImage, kept int64) {
	type image struct {
		PrunedImage
		key   string
		blobs []v1.Descriptor
	}
	var images []image
	users := map[v1.Hash]int{} // of each blob
	for _, d := range x.Manifests {
		i := image{PrunedImage: PrunedImage{Ref: d.Annotations[annotationRef], Digest: d.Digest}, key: d.Annotations[annotationKey]}
		if manifest, err := c.manifest(d.Digest); err == nil {
			i.Used = c.used(d.Digest)
			i.blobs = distinct(append(slices.Clone(manifest.Layers), manifest.Config, d))
		}
		for _, b := range i.blobs {
			if users[b.Digest]++; users[b.Digest] == 1 {
				kept += b.Size
			}
		}
		images = append(images, i)
	}
	slices.SortStableFunc(images, func(a, b image) int { return a.Used.Compare(b.Used) })
	for _, i := range images {
		damaged := i.blobs == nil
		if !damaged && (kept <= keep || keys[i.Ref] == i.key) {
			continue
		}
		for _, b := range i.blobs {
			if users[b.Digest]--; users[b.Digest] == 0 {
				i.Bytes += b.Size
			}
		}
		kept -= i.Bytes
		x.remove(i.Ref, i.key)
		taken = append(taken, i.PrunedImage)
	}
	return taken, kept
}

// distinct leaves out blobs that an image names twice.
func distinct(blobs []v1.Descriptor) []v1.Descriptor {
	seen := map[v1.Hash]bool{}
	return slices.DeleteFunc(blobs, func(b v1.Descriptor) bool {
		twice := seen[b.Digest]
		seen[b.Digest] = true
		return twice
	})
}

// sweep removes the blobs that no image of the index names, and returns how
// many bytes they were. A reader that opens an image in this moment fails, and
// does not find it any more.
func (c *cache) sweep(x *index) (int64, error) {
	named := map[string]bool{}
	for _, d := range x.Manifests {
		manifest, err := c.manifest(d.Digest)
		if err != nil {
			return 0, fmt.Errorf("reading image %s: %w", d.Annotations[annotationRef], err)
		}
		for _, b := range append(slices.Clone(manifest.Layers), manifest.Config, d) {
			named[b.Digest.Hex] = true
		}
	}
	folder := filepath.Join(c.dir, "blobs", "sha256")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, fmt.Errorf("looking for blobs that no image names: %w", err)
	}
	var size int64
	var errs []error
	for _, entry := range entries {
		if named[entry.Name()] {
			continue
		}
		info, err := entry.Info()
		if err == nil {
			err = os.Remove(filepath.Join(folder, entry.Name()))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing a blob that no image names: %w", err))
			continue
		}
		size += info.Size()
	}
	return size, errors.Join(errs...)
}

// touch notes that an image is being used: Prune goes by the time of its
// manifest's file. A cache that cannot be written keeps its times, which harms
// nobody, as Prune cannot remove anything there either.
func (c *cache) touch(digest v1.Hash) {
	now := time.Now()
	_ = os.Chtimes(c.blob(digest), now, now)
}

// used is when an image was last built or touched.
func (c *cache) used(digest v1.Hash) time.Time {
	info, err := os.Stat(c.blob(digest))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
