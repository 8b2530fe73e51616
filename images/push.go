package images

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
)

// Digests returns the digests of images that have been built, by ref.
func (c *Catalogue) Digests(ctx context.Context, refs []string) (map[string]v1.Hash, error) {
	needed, err := c.closure(refs)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys(ctx, needed)
	if err != nil {
		return nil, err
	}
	digests := map[string]v1.Hash{}
	for _, ref := range refs {
		digest, ok, err := c.cache.lookup(ref, keys[ref])
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("image %s is not built as its recipe is now; build it first", ref)
		}
		digests[ref] = digest
	}
	return digests, nil
}

// mirrorPath returns the repository and tag under which containerd asks a
// mirror of the ref's host for the image: everything behind the host.
func mirrorPath(ref string) (string, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return "", err
	}
	return tag.RepositoryStr() + ":" + tag.TagStr(), nil
}

// Blobs returns the folder in which the cache keeps blobs, as
// <algorithm>/<hexadecimal digest>, and the digests of the layers and
// configurations of built images, by the repository that a containerd mirror of
// their hosts asks for.
func (c *Catalogue) Blobs(ctx context.Context, refs []string) (folder string, byRepository map[string][]string, err error) {
	digests, err := c.Digests(ctx, refs)
	if err != nil {
		return "", nil, err
	}
	byRepository = map[string][]string{}
	for ref, digest := range digests {
		tag, err := name.NewTag(ref, name.StrictValidation)
		if err != nil {
			return "", nil, err
		}
		manifest, err := c.cache.manifest(digest)
		if err != nil {
			return "", nil, fmt.Errorf("reading the manifest of image %s: %w", ref, err)
		}
		for _, blob := range append(slices.Clone(manifest.Layers), manifest.Config) {
			byRepository[tag.RepositoryStr()] = append(byRepository[tag.RepositoryStr()], blob.Digest.String())
		}
	}
	folder, err = filepath.Abs(filepath.Join(c.cache.dir, "blobs"))
	return folder, byRepository, err
}

// Push makes built images available in the registry at addr ("host:port",
// plain http) under the names that a containerd mirror of their hosts asks
// for: registry.k8s.io/pause:3.10 as pause:3.10. Images and blobs that the
// registry has are left alone. Two images of different hosts that would get the same name
// are an error.
func (c *Catalogue) Push(ctx context.Context, addr string, refs []string) error {
	digests, err := c.Digests(ctx, refs)
	if err != nil {
		return err
	}
	targets := map[string]string{} // ref by mirror path
	for ref := range digests {
		target, err := mirrorPath(ref)
		if err != nil {
			return fmt.Errorf("pushing images: %w", err)
		}
		if other, taken := targets[target]; taken {
			return fmt.Errorf("pushing images: %s and %s would both be %s in the registry", ref, other, target)
		}
		targets[target] = ref
	}
	// A proxy set in the environment cannot reach a lab's addresses.
	transport := remote.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	defer transport.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4) // enough to keep disk and loopback busy
	for target, ref := range targets {
		group.Go(func() error {
			tag, err := name.NewTag(addr+"/"+target, name.Insecure)
			if err == nil {
				err = c.push(tag, digests[ref], remote.WithContext(ctx), remote.WithTransport(transport))
			}
			if err != nil {
				return fmt.Errorf("pushing %s to %s: %w", ref, addr, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (c *Catalogue) push(tag name.Tag, digest v1.Hash, options ...remote.Option) error {
	if there, err := remote.Head(tag, options...); err == nil && there.Digest == digest {
		return nil
	}
	image, err := c.cache.image(digest)
	if err != nil {
		return err
	}
	return remote.Write(tag, image, options...)
}
