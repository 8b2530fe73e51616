package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// Annotations of the index's entries. The first is the image-spec's.
const (
	annotationRef = "org.opencontainers.image.ref.name"
	annotationKey = "dev.relapse.key"
	// What building the image took, as Cost has it: durations such as 98.2s.
	annotationTook = "dev.relapse.took"
	annotationCPU  = "dev.relapse.cpu"
)

// cache is an OCI image layout, with these folders beside what the layout
// prescribes: tmp for builds under way, locks, and logs of builds.
//
// A blob is written under another name and renamed once it is whole, and an
// image exists from the moment when the index names it, which is the last
// step of its build. So an interrupted build leaves whole blobs at most.
// go-containerregistry's package layout reads the cache and does not write it:
// it writes index, manifests and configs in place, and takes a blob that was
// cut off for a whole one.
type cache struct{ dir string }

func (c *cache) blob(digest v1.Hash) string {
	return filepath.Join(c.dir, "blobs", digest.Algorithm, digest.Hex)
}

// modules is the folder of the go.mod files that are derived for versions
// which the catalogue does not have.
func (c *cache) modules() string { return filepath.Join(c.dir, "modules") }

// index is the layout's index.json.
type index struct{ v1.IndexManifest }

// find returns the entry of the image built from ref's recipe when its inputs
// had this key.
func (x *index) find(ref, key string) (v1.Descriptor, bool) {
	for _, d := range x.Manifests {
		if d.Annotations[annotationRef] == ref && d.Annotations[annotationKey] == key {
			return d, true
		}
	}
	return v1.Descriptor{}, false
}

// index reads the index; an empty cache has an empty one.
func (c *cache) index() (*index, error) {
	x := &index{v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}}
	data, err := os.ReadFile(filepath.Join(c.dir, "index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return x, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the image cache's index: %w", err)
	}
	if err := json.Unmarshal(data, x); err != nil {
		return nil, fmt.Errorf("reading the image cache's index %s: %w", filepath.Join(c.dir, "index.json"), err)
	}
	return x, nil
}

// update changes the index with no other process in between.
func (c *cache) update(ctx context.Context, change func(*index)) error {
	unlock, err := c.lock(ctx, "index", nil)
	if err != nil {
		return err
	}
	defer unlock()
	x, err := c.index()
	if err != nil {
		return err
	}
	change(x)
	data, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		return err
	}
	return c.replaceFile("index.json", data)
}

// replaceFile writes a file of the cache so that readers see the old or the
// new content and never a part.
func (c *cache) replaceFile(name string, data []byte) error {
	tmp, err := os.CreateTemp(c.dir, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(c.dir, name))
}

// prepare creates the cache's folders.
func (c *cache) prepare() error {
	for _, dir := range []string{"blobs/sha256", "tmp", "locks", "logs"} {
		if err := os.MkdirAll(filepath.Join(c.dir, dir), 0o755); err != nil {
			return fmt.Errorf("creating the image cache: %w", err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, "oci-layout")); err != nil {
		if err := c.replaceFile("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
			return fmt.Errorf("creating the image cache: %w", err)
		}
	}
	return nil
}

// workspace creates a folder for one build, after removing those that killed
// builds left. A folder is in use for as long as its lock is held, that is,
// for as long as the process lives or until remove is called.
func (c *cache) workspace(ctx context.Context) (dir string, remove func() error, err error) {
	unlock, err := c.lock(ctx, "tmp", nil)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	if err := c.clean(); err != nil {
		return "", nil, fmt.Errorf("removing what interrupted image builds left: %w", err)
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

// clean removes the folders of builds whose process is gone.
func (c *cache) clean() error {
	entries, err := os.ReadDir(filepath.Join(c.dir, "tmp"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		dir := filepath.Join(c.dir, "tmp", entry.Name())
		lock, err := tryLock(dir)
		if err != nil || lock == nil {
			continue // in use
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// tryLock takes the lock on a file or folder; it returns nil if another process
// has it. Closing the result gives it back, and so does the process's end.
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

// lock takes the named lock between processes, and calls waiting once if
// another one has it. It ends with ctx.
func (c *cache) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	path := filepath.Join(c.dir, "locks", fileName(name))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("taking the lock on %s: %w", name, err)
	}
	f.Close()
	// flock cannot be interrupted by a context, so ask again and again.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		lock, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("taking the lock on %s: %w", name, err)
		}
		if lock != nil {
			return func() { lock.Close() }, nil
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another process that builds %s: %w", name, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// fileName makes a file name of an image's name.
func fileName(ref string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == ':' {
			return '_'
		}
		return r
	}, ref)
}

// blobWriter writes a blob whose digest is known only when it is whole.
type blobWriter struct {
	cache *cache
	file  *os.File
	hash  hash.Hash
	io.Writer
}

// newBlob starts a blob in a build's workspace.
func (c *cache) newBlob(workspace string) (*blobWriter, error) {
	f, err := os.CreateTemp(workspace, "blob-")
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	return &blobWriter{c, f, h, io.MultiWriter(f, h)}, nil
}

// commit gives the blob its name.
func (w *blobWriter) commit(mediaType types.MediaType) (v1.Descriptor, error) {
	info, err := w.file.Stat()
	if err := errors.Join(err, w.file.Close()); err != nil {
		return v1.Descriptor{}, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(w.hash.Sum(nil))}
	if err := os.Chmod(w.file.Name(), 0o644); err != nil {
		return v1.Descriptor{}, err
	}
	if err := os.Rename(w.file.Name(), w.cache.blob(digest)); err != nil {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: info.Size()}, nil
}

// discard removes a blob that was not committed; after commit it does nothing.
func (w *blobWriter) discard() {
	w.file.Close()
	os.Remove(w.file.Name())
}

// putJSON stores a config or manifest.
func (c *cache) putJSON(workspace string, content any, mediaType types.MediaType) (v1.Descriptor, error) {
	data, err := json.Marshal(content)
	if err != nil {
		return v1.Descriptor{}, err
	}
	w, err := c.newBlob(workspace)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer w.discard()
	if _, err := w.Write(data); err != nil {
		return v1.Descriptor{}, err
	}
	return w.commit(mediaType)
}

// manifest reads an image's manifest, and makes sure that all it names is
// there in full length.
func (c *cache) manifest(digest v1.Hash) (*v1.Manifest, error) {
	f, err := os.Open(c.blob(digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	manifest, err := v1.ParseManifest(f)
	if err != nil {
		return nil, fmt.Errorf("reading manifest %s: %w", digest, err)
	}
	for _, d := range append(slices.Clone(manifest.Layers), manifest.Config) {
		info, err := os.Stat(c.blob(d.Digest))
		if err != nil {
			return nil, err
		}
		if info.Size() != d.Size {
			return nil, fmt.Errorf("blob %s has %d bytes in place of %d", d.Digest, info.Size(), d.Size)
		}
	}
	return manifest, nil
}

// config reads an image's config.
func (c *cache) config(manifest *v1.Manifest) (*v1.ConfigFile, error) {
	f, err := os.Open(c.blob(manifest.Config.Digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return v1.ParseConfigFile(f)
}

// image opens a cached image for go-containerregistry.
func (c *cache) image(digest v1.Hash) (v1.Image, error) {
	path, err := layout.FromPath(c.dir)
	if err != nil {
		return nil, fmt.Errorf("opening the image cache: %w", err)
	}
	return path.Image(digest)
}

// lookup returns the digest of an image that the cache holds whole, and notes
// that it is used.
func (c *cache) lookup(ref, key string) (v1.Hash, bool, error) {
	x, err := c.index()
	if err != nil {
		return v1.Hash{}, false, err
	}
	entry, ok := x.find(ref, key)
	if !ok {
		return v1.Hash{}, false, nil
	}
	if _, err := c.manifest(entry.Digest); err != nil {
		return v1.Hash{}, false, nil // damaged: as good as not there
	}
	c.touch(entry.Digest)
	return entry.Digest, true, nil
}

// add makes a stored image known under ref and key.
func (c *cache) add(ctx context.Context, ref, key string, manifest v1.Descriptor, cost Cost) error {
	manifest.Annotations = map[string]string{
		annotationRef: ref, annotationKey: key,
		annotationTook: cost.Took.Round(time.Millisecond).String(), annotationCPU: cost.CPU.Round(time.Millisecond).String(),
	}
	return c.update(ctx, func(x *index) {
		x.remove(ref, key)
		x.Manifests = append(x.Manifests, manifest)
	})
}

func (x *index) remove(ref, key string) {
	x.Manifests = slices.DeleteFunc(x.Manifests, func(d v1.Descriptor) bool {
		return d.Annotations[annotationRef] == ref && d.Annotations[annotationKey] == key
	})
}
