package images

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pinFile, beside the recipes' folders, lists the digests under which vendors publish
// images: a line "NAME:TAG sha256:..." for each. Empty lines and lines that begin with #
// say nothing.
const pinFile = "published.txt"

// stallsAfter and stallBytes bound a download by its progress: it ends if it has brought
// fewer bytes than that in that time. Building is then faster.
const (
	stallsAfter = 10 * time.Second
	stallBytes  = 100_000
	// takesAtMost bounds it in all, and othersTake the wait for another process that
	// downloads the same image.
	takesAtMost = 3 * time.Minute
	othersTake  = 10 * time.Second
)

// PinFile is the path of the file of pinned digests.
func (c *Catalogue) PinFile() string { return filepath.Join(c.root, "images", pinFile) }

// Pin is the digest by which the vendor's image of this name is taken: that of its manifest,
// or of an index for several architectures. There is none for most images.
func (c *Catalogue) Pin(ref string) (v1.Hash, bool) {
	pin, there := c.pins[ref]
	return pin, there
}

// readPins reads the file of pinned digests; a tree without it has none.
func (c *Catalogue) readPins() []error {
	data, err := os.ReadFile(c.PinFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return []error{fmt.Errorf("reading pinned digests: %w", err)}
	}
	c.pins = map[string]v1.Hash{}
	var errs []error
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if err := c.pin(fields); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", c.PinFile(), number, err))
		}
	}
	return errs
}

// pin notes what a line of the file says.
func (c *Catalogue) pin(fields []string) error {
	if len(fields) != 2 {
		return fmt.Errorf("%q: expected NAME:TAG and a digest", strings.Join(fields, " "))
	}
	ref := fields[0]
	if _, err := name.NewTag(ref, name.StrictValidation); err != nil {
		return err
	}
	digest, err := v1.NewHash(fields[1])
	switch {
	case err != nil:
		return err
	case digest.Algorithm != "sha256":
		return fmt.Errorf("%s: expected a sha256 digest", digest)
	case c.pins[ref] != v1.Hash{}:
		return fmt.Errorf("%s is pinned twice", ref)
	}
	if c.recipes[ref] == nil {
		return fmt.Errorf("no recipe makes %s", ref)
	}
	for _, r := range c.recipes {
		if r.Base == ref {
			return fmt.Errorf("%s is built on %s: its base is built, too", r.Ref, ref)
		}
	}
	c.pins[ref] = digest
	return nil
}

// WritePins replaces the file of pinned digests. This catalogue keeps those that it has read.
func (c *Catalogue) WritePins(pins map[string]v1.Hash) error {
	var text bytes.Buffer
	text.WriteString("# The digests under which vendors publish images that are not under test, as\n" +
		"# relapse images pin writes them. An image without a line is always built.\n")
	for _, ref := range slices.Sorted(maps.Keys(pins)) {
		fmt.Fprintf(&text, "%s %s\n", ref, pins[ref])
	}
	// In one step: a file with half a line would be refused by every command.
	temporary := c.PinFile() + ".new"
	err := os.WriteFile(temporary, text.Bytes(), 0o644)
	if err == nil {
		err = os.Rename(temporary, c.PinFile())
	}
	if err != nil {
		return fmt.Errorf("writing pinned digests: %w", err)
	}
	return nil
}

// Published is a vendor's image in the cache, which was taken by its pinned digest.
type Published struct {
	// Pin is the pinned digest. Digest is that of the manifest for this machine's
	// architecture: the same, unless Pin is that of an index.
	Pin, Digest v1.Hash
	// From is the host that has served it.
	From string
}

// publishedKey is the cache's key of a vendor's image, in place of that of a recipe.
// The same index has another image for another architecture.
func publishedKey(pin v1.Hash) string { return "published " + runtime.GOARCH + " " + pin.String() }

// Published returns those of refs that the cache holds as their vendors publish them, by
// the digests that are pinned now.
func (c *Catalogue) Published(refs []string) (map[string]Published, error) {
	x, err := c.cache.index()
	if err != nil {
		return nil, err
	}
	held := map[string]Published{}
	for _, ref := range refs {
		pin, pinned := c.pins[ref]
		if !pinned {
			continue
		}
		entry, there := x.find(ref, publishedKey(pin))
		if !there {
			continue
		}
		if _, err := c.cache.manifest(entry.Digest); err != nil {
			continue // damaged: as good as not there
		}
		held[ref] = Published{pin, entry.Digest, entry.Annotations[annotationFrom]}
	}
	return held, nil
}

// Unbuilt returns those of refs that Build would build.
func (c *Catalogue) Unbuilt(ctx context.Context, refs []string) ([]string, error) {
	needed, err := c.closure(refs)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys(ctx, needed)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, ref := range refs {
		if _, cached, err := c.cache.lookup(ref, keys[ref]); err != nil {
			return nil, err
		} else if !cached {
			missing = append(missing, ref)
		}
	}
	return missing, nil
}

// With returns the catalogue with the vendors' images in place of those that recipes make:
// Build, Digests, Blobs, Push and LoadDocker take them from the cache. All else is shared.
func (c *Catalogue) With(published map[string]Published) *Catalogue {
	other := *c
	other.published = published
	return &other
}

// Take puts a vendor's image into the cache. At is its pinned digest in a registry. Each
// manifest, config and layer is compared with its digest, which leads back to the pinned
// one. The error says why there is no such image; the cache then is as before, but for
// whole layers. A download without progress ends with a *StalledError.
func (c *Catalogue) Take(ctx context.Context, ref string, at name.Digest) (err error) {
	pin, pinned := c.pins[ref]
	if !pinned || at.DigestStr() != pin.String() {
		return fmt.Errorf("%s is not the pinned digest of %s", at.DigestStr(), ref)
	}
	if err := c.cache.prepare(); err != nil {
		return err
	}
	waiting, stop := context.WithTimeoutCause(ctx, othersTake, errors.New("another process is downloading it"))
	defer stop()
	unlock, err := c.cache.lock(waiting, "published "+ref, nil)
	if err != nil {
		return cmp.Or(context.Cause(waiting), err)
	}
	defer unlock()
	held, err := c.Published([]string{ref})
	if _, there := held[ref]; err != nil || there { // another process has taken it
		return err
	}
	workspace, remove, err := c.cache.workspace(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	began := time.Now()
	ctx, transport, end := progressing(ctx, c.stallsAfter)
	defer end()
	manifest, err := c.cache.store(workspace, at, remote.WithContext(ctx), remote.WithTransport(transport),
		remote.WithUserAgent("relapse"), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{annotationFrom: at.RegistryStr()}
	return c.cache.add(ctx, ref, publishedKey(pin), manifest, Cost{Took: time.Since(began)})
}

// store writes the blobs of an image of a registry, and returns its manifest.
func (c *cache) store(workspace string, at name.Digest, options ...remote.Option) (v1.Descriptor, error) {
	image, err := remote.Image(at, options...)
	if err != nil {
		return v1.Descriptor{}, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return v1.Descriptor{}, err
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		return v1.Descriptor{}, fmt.Errorf("it is for %s/%s", config.OS, config.Architecture)
	}
	text, err := image.RawConfigFile()
	if err == nil {
		err = c.putBlob(workspace, bytes.NewReader(text), manifest.Config)
	}
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, d := range manifest.Layers {
		if info, err := os.Stat(c.blob(d.Digest)); err == nil && info.Size() == d.Size {
			continue // another image's as well
		}
		layer, err := image.LayerByDigest(d.Digest)
		if err != nil {
			return v1.Descriptor{}, err
		}
		content, err := layer.Compressed()
		if err != nil {
			return v1.Descriptor{}, err
		}
		if err := errors.Join(c.putBlob(workspace, content, d), content.Close()); err != nil {
			return v1.Descriptor{}, err
		}
	}
	digest, err := image.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return v1.Descriptor{}, err
	}
	text, err = image.RawManifest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	d := v1.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(text))}
	return d, c.putBlob(workspace, bytes.NewReader(text), d)
}

// putBlob stores a blob that must have the digest of d.
func (c *cache) putBlob(workspace string, content io.Reader, d v1.Descriptor) error {
	w, err := c.newBlob(workspace)
	if err != nil {
		return err
	}
	defer w.discard()
	if _, err := io.Copy(w, content); err != nil {
		return err
	}
	stored, err := w.commit(d.MediaType)
	if err == nil && stored.Digest != d.Digest {
		err = fmt.Errorf("blob %s has the content of %s", d.Digest, stored.Digest)
	}
	return err
}

// StalledError is a download that has stopped, or has become too slow.
type StalledError struct{ Within time.Duration }

func (e *StalledError) Error() string {
	return fmt.Sprintf("the download has stalled: fewer than %d kB in %s", stallBytes/1000, e.Within)
}

// progress is a transport that ends a download without any: the time of each answer, and of
// each stallBytes of one, is bounded. A download reads one answer after the other.
type progress struct {
	*http.Transport
	timer *time.Timer
	every time.Duration
}

// progressing is a context that ends with a *StalledError when the transport has received too
// little for a period. End must be called.
func progressing(ctx context.Context, period time.Duration) (_ context.Context, _ http.RoundTripper, end func()) {
	ctx, stop := context.WithTimeoutCause(ctx, takesAtMost, fmt.Errorf("the download took longer than %s", takesAtMost))
	ctx, cancel := context.WithCancelCause(ctx)
	p := progress{remote.DefaultTransport.(*http.Transport).Clone(), time.AfterFunc(period, func() { cancel(&StalledError{period}) }), period}
	return ctx, p, func() {
		p.timer.Stop()
		cancel(nil)
		stop()
		p.CloseIdleConnections()
	}
}

func (p progress) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.Transport.RoundTrip(request)
	if err == nil {
		p.timer.Reset(p.every)
		response.Body = &progressBody{ReadCloser: response.Body, progress: p}
	}
	return response, err
}

type progressBody struct {
	io.ReadCloser
	progress progress
	received int // since the timer was reset
}

func (b *progressBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.received += n; b.received >= stallBytes {
		b.received = 0
		b.progress.timer.Reset(b.progress.every)
	}
	return n, err
}
