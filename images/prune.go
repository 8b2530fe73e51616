package images

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Pruned says what Prune did.
type Pruned struct {
	// Images are the removed ones, by ref, which a damaged one may not have.
	Images []string
	// Builds is the number of killed builds whose folders were removed.
	Builds int
	// Freed is what that has set free, and Kept what the images that are left take, in bytes.
	// Layers that several images share count once.
	Freed, Kept int64
}

// Prune removes the images from the cache that the catalogue does not describe as its recipes are
// now: those of an earlier state of a recipe, and versions that the catalogue does not have. It also
// removes damaged images and what interrupted builds have left. It is an error while images
// are being built, because a build may need any image.
func (c *Catalogue) Prune(ctx context.Context) (Pruned, error) {
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
	var running string
	if p.Builds, running, err = c.cache.clean(); err != nil {
		return p, err
	}
	if running != "" {
		return p, fmt.Errorf("images are being built in %s: prune the cache when they are done", running)
	}
	entries, err := c.cache.entries()
	if err != nil {
		return p, err
	}
	needed := slices.Collect(maps.Values(keys))
	before, err := diskUse(c.cache.layouts())
	if err != nil {
		return p, err
	}
	for _, e := range entries {
		if e.damage == nil && slices.Contains(needed, e.key) {
			continue
		}
		if err := os.RemoveAll(string(e.Path)); err != nil {
			return p, fmt.Errorf("removing image %s: %w", e.Annotations[annotationRef], err)
		}
		p.Images = append(p.Images, e.Annotations[annotationRef])
	}
	p.Kept, err = diskUse(c.cache.layouts())
	p.Freed = before - p.Kept
	return p, err
}

// diskUse is the size in bytes of all files below a folder. A file with several names counts once.
func diskUse(folder string) (size int64, err error) {
	counted := map[uint64]bool{}
	err = filepath.WalkDir(folder, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		info, err := file.Info()
		if err != nil {
			return err
		}
		if inode := info.Sys().(*syscall.Stat_t).Ino; !counted[inode] {
			counted[inode] = true
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measuring the image cache: %w", err)
	}
	return size, nil
}
