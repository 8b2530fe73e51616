package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/each"
)

// annotationRef is the image-spec's annotation of an image in its layout's index.
const annotationRef = "org.opencontainers.image.ref.name"

// cache is a folder. Its folder layouts has an OCI image layout for each image, with the
// image's key as its name. Beside it are tmp for builds under way, locks, logs of builds and
// modules (go.mod files that are derived for versions which the catalogue does not have).
//
// A layout is written in tmp and renamed once it is whole. So an interrupted build leaves nothing but a folder in
// tmp. Layers of a base are hard links: images that share a layer share its disk space.
type cache struct{ dir string }

func (c *cache) layouts() string { return filepath.Join(c.dir, "layouts") }

func (c *cache) modules() string { return filepath.Join(c.dir, "modules") }

func (c *cache) prepare() error {
	for _, dir := range []string{"layouts", "tmp", "locks", "logs"} {
		if err := os.MkdirAll(filepath.Join(c.dir, dir), 0o755); err != nil {
			return fmt.Errorf("creating the image cache: %w", err)
		}
	}
	return nil
}

type entry struct {
	imageLayout
	key           string
	v1.Descriptor // of the manifest, with the annotations
	manifest      *v1.Manifest
	// damage is why the image cannot be used: it is missing, or not whole (other fields may be set). Build makes it again.
	damage error
}

// entry reads an image, and makes sure that all its blobs are there in full length.
func (c *cache) entry(key string) entry {
	e := entry{imageLayout: imageLayout{layout.Path(filepath.Join(c.layouts(), key))}, key: key}
	e.damage = e.read()
	return e
}

func (e *entry) read() error {
	index, err := e.ImageIndex()
	if err != nil {
		return err
	}
	x, err := index.IndexManifest()
	if err != nil {
		return err
	}
	if len(x.Manifests) != 1 {
		return fmt.Errorf("the index of %s has %d images in place of one", e.Path, len(x.Manifests))
	}
	e.Descriptor = x.Manifests[0]
	text, err := e.Bytes(e.Digest)
	if err != nil {
		return err
	}
	if e.manifest, err = v1.ParseManifest(bytes.NewReader(text)); err != nil {
		return fmt.Errorf("reading manifest %s: %w", e.Digest, err)
	}
	for _, d := range e.blobs() {
		info, err := os.Stat(e.blob(d.Digest))
		if err != nil {
			return err
		}
		if info.Size() != d.Size {
			return fmt.Errorf("blob %s has %d bytes in place of %d", d.Digest, info.Size(), d.Size)
		}
	}
	return nil
}

// blobs are all blobs of a whole image, the manifest last.
func (e *entry) blobs() []v1.Descriptor {
	return append(slices.Clone(e.manifest.Layers), e.manifest.Config, e.Descriptor)
}

func (e *entry) config() (*v1.ConfigFile, error) {
	text, err := e.Bytes(e.manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	return v1.ParseConfigFile(bytes.NewReader(text))
}

func (c *cache) entries() ([]entry, error) {
	folders, err := os.ReadDir(c.layouts())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the image cache: %w", err)
	}
	return each.Of(folders, func(folder os.DirEntry) entry { return c.entry(folder.Name()) }), nil
}

// add makes a finished layout the image of a key. The caller has the lock of the image.
func (c *cache) add(l imageLayout, key string) error {
	to := filepath.Join(c.layouts(), key)
	if err := os.RemoveAll(to); err != nil { // a damaged image
		return err
	}
	return os.Rename(string(l.Path), to)
}

// imageLayout is an OCI image layout of one image: in tmp while it is being written.
type imageLayout struct{ layout.Path }

func newLayout(dir string) (imageLayout, error) {
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755)
	}
	return imageLayout{path}, err
}

func (l imageLayout) blob(digest v1.Hash) string {
	return filepath.Join(string(l.Path), "blobs", digest.Algorithm, digest.Hex)
}

func (l imageLayout) link(from imageLayout, blobs []v1.Descriptor) error {
	for _, b := range blobs {
		if err := os.Link(from.blob(b.Digest), l.blob(b.Digest)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (l imageLayout) finish(ref string, config *v1.ConfigFile, layers []v1.Descriptor) error {
	described, err := l.writeJSON(config, types.OCIConfigJSON)
	if err != nil {
		return fmt.Errorf("writing config: %w", err)
	}
	manifest, err := l.writeJSON(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: described, Layers: layers,
	}, types.OCIManifestSchema1)
	if err != nil {
		return fmt.Errorf("writing manifest: %w", err)
	}
	manifest.Annotations = map[string]string{annotationRef: ref}
	if err := l.AppendDescriptor(manifest); err != nil {
		return fmt.Errorf("writing index: %w", err)
	}
	return nil
}

func (l imageLayout) writeJSON(content any, mediaType types.MediaType) (v1.Descriptor, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return v1.Descriptor{}, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(text))
	if err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, l.WriteBlob(digest, io.NopCloser(bytes.NewReader(text)))
}

// workspace creates a folder for one build, after removing the folders that killed builds left. A
// folder is in use for as long as its lock is held: until the process ends, or remove is called.
func (c *cache) workspace(ctx context.Context) (dir string, remove func() error, err error) {
	unlock, err := c.lock(ctx, "tmp", nil)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if _, _, err := c.clean(); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(filepath.Join(c.dir, "tmp"), "build-")
	if err != nil {
		return "", nil, fmt.Errorf("creating a folder for the build: %w", err)
	}
	lock, err := tryLock(dir)
	if err == nil && lock == nil {
		err = errors.New("another process holds the lock")
	}
	if err != nil {
		return "", nil, fmt.Errorf("locking the build's folder %s: %w", dir, err)
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

// clean removes the folders of builds whose process is gone, and returns how many, and one that is in use.
func (c *cache) clean() (removed int, running string, err error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "tmp"))
	for _, entry := range entries {
		dir := filepath.Join(c.dir, "tmp", entry.Name())
		lock, lockErr := tryLock(dir)
		if lockErr != nil || lock == nil {
			running = dir
			continue
		}
		removed++
		err = errors.Join(err, os.RemoveAll(dir), lock.Close())
	}
	if err != nil {
		err = fmt.Errorf("removing what interrupted image builds left: %w", err)
	}
	return removed, running, err
}

// tryLock locks a file or folder until its result is closed or the process ends; nil if another process has the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, f.Close()
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock takes the named lock between processes, and calls waiting once if another one has it. It ends with ctx.
func (c *cache) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	path := filepath.Join(c.dir, "locks", fileName(name))
	err = os.WriteFile(path, nil, 0o644)
	// flock cannot be interrupted by a context, so ask again and again.
	for first := true; err == nil; first = false {
		var lock *os.File
		if lock, err = tryLock(path); lock != nil {
			return func() { lock.Close() }, nil
		}
		switch {
		case err != nil:
			continue
		case first && waiting != nil:
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another process that builds %s: %w", name, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("taking the lock on %s: %w", name, err)
}

func fileName(ref string) string { return strings.NewReplacer("/", "_", ":", "_").Replace(ref) }

// Pruned says what Prune did.
type Pruned struct {
	// Images are the removed ones, by ref, which a damaged one may not have.
	Images []string
	// Builds is the number of killed builds whose folders were removed.
	Builds int
	// Freed is what the removed images took, and Kept what is left, in bytes. Layers that images share count once.
	Freed, Kept int64
}

// Prune removes from the cache the images of earlier states of recipes, and of versions that the catalogue does not
// have, damaged images, and what interrupted builds have left. It is an error during a build, which may need any image.
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
