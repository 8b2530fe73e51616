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
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Pruned says what Prune did.
type Pruned struct {
	// Images are the removed ones, least recently used first.
	Images []PrunedImage
	// Builds is the number of killed builds whose folders were removed.
	Builds int
	// Kept is what the images that are left take, in bytes. It is more than was
	// asked for if the catalogue needs more.
	Kept int64
}

// PrunedImage is an image that was removed from the cache.
type PrunedImage struct {
	Ref    string
	Digest v1.Hash // the manifest's
	// Used is when the image was last built, pushed, loaded or found by Build; zero if it was
	// damaged.
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

// Prune removes images from the cache, least recently used first, until the others take no more
// than keep bytes. It also removes damaged images and what interrupted builds have left. Images
// that the catalogue describes as its recipes are now stay; images of an earlier state of a recipe
// do not. It returns a *BusyError while images are being built, because a build may need any image.
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
	entries, err := c.cache.entries()
	if err != nil {
		return p, err
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return a.used().Compare(b.used()) })
	needed := slices.Collect(maps.Values(keys))
	if p.Kept, err = diskUse(c.cache.layouts()); err != nil {
		return p, err
	}
	for _, e := range entries {
		if e.damage == nil && (p.Kept <= keep || slices.Contains(needed, e.key)) {
			continue
		}
		removed := PrunedImage{Ref: e.Annotations[annotationRef], Digest: e.Digest, Used: e.used()}
		if err := os.RemoveAll(string(e.Path)); err != nil {
			return p, fmt.Errorf("removing image %s: %w", removed.Ref, err)
		}
		left, err := diskUse(c.cache.layouts())
		if err != nil {
			return p, err
		}
		removed.Bytes, p.Kept = p.Kept-left, left
		p.Images = append(p.Images, removed)
	}
	return p, nil
}

// diskUse is the size in bytes of all files below a folder. A file with several names counts once.
func diskUse(folder string) (size int64, err error) {
	counted := map[uint64]bool{}
	err = filepath.WalkDir(folder, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		info, err := file.Info()
		if err == nil && !counted[inode(info)] {
			counted[inode(info)] = true
			size += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measuring the image cache: %w", err)
	}
	return size, nil
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

// Damage is an image of the cache whose content is not what its digests say.
type Damage struct {
	Ref    string
	Digest v1.Hash // the manifest's
	Err    error   // the blobs found wrong, and how
}

// Verify reads the whole cache and compares every blob with its digest. Damaged images are
// removed, so that the next Build makes them again.
//
// Package validate of go-containerregistry takes no layers that are not compressed, and
// would read a layer once for each image that has it.
func (c *Catalogue) Verify(ctx context.Context) ([]Damage, error) {
	entries, err := c.cache.entries()
	if err != nil {
		return nil, err
	}
	var damages []Damage
	var errs []error
	checked := map[uint64]error{} // by inode
	for _, e := range entries {
		err := e.damage
		if err == nil {
			err = e.verify(ctx, checked)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("verifying the image cache: %w", context.Cause(ctx))
		}
		if err != nil {
			damages = append(damages, Damage{e.Annotations[annotationRef], e.Digest, err})
			errs = append(errs, os.RemoveAll(string(e.Path)))
		}
	}
	return damages, errors.Join(errs...)
}

// verify checks an image's blobs; checked remembers the results.
func (e *entry) verify(ctx context.Context, checked map[uint64]error) error {
	var errs []error
	for _, d := range e.blobs() {
		info, err := os.Stat(e.blob(d.Digest))
		if err != nil {
			return err
		}
		if _, known := checked[inode(info)]; !known && ctx.Err() == nil {
			checked[inode(info)] = e.verifyBlob(d.Digest)
		}
		errs = append(errs, checked[inode(info)])
	}
	return errors.Join(errs...)
}

func (e *entry) verifyBlob(digest v1.Hash) error {
	f, err := os.Open(e.blob(digest))
	if err != nil {
		return err
	}
	defer f.Close()
	found, _, err := v1.SHA256(f)
	if err == nil && found != digest {
		err = fmt.Errorf("blob %s has the content of %s", digest, found)
	}
	return err
}
