package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"
)

// Digests returns the digests of images that have been built, by ref.
func (c *Catalogue) Digests(ctx context.Context, refs []string) (map[string]v1.Hash, error) {
	entries, err := c.entries(ctx, refs)
	digests := map[string]v1.Hash{}
	for ref, e := range entries {
		digests[ref] = e.Digest
	}
	return digests, err
}

func (c *Catalogue) entries(ctx context.Context, refs []string) (map[string]entry, error) {
	needed, err := c.closure(refs)
	if err != nil {
		return nil, err
	}
	keys, err := c.keys(ctx, needed)
	if err != nil {
		return nil, err
	}
	entries := map[string]entry{}
	for _, ref := range refs {
		e := c.cache.entry(keys[ref])
		if e.damage != nil {
			return nil, fmt.Errorf("image %s is not built as its recipe is now; build it first", ref)
		}
		entries[ref] = e
	}
	return entries, nil
}

// Blobs returns a folder of the cache, and the files below it that are the layers and configurations of built images:
// by the repository that a containerd mirror of their hosts asks for, and by digest.
func (c *Catalogue) Blobs(ctx context.Context, refs []string) (folder string, files map[string]map[string]string, err error) {
	entries, err := c.entries(ctx, refs)
	if err != nil {
		return "", nil, err
	}
	folder, err = filepath.Abs(c.cache.layouts())
	if err != nil {
		return "", nil, err
	}
	files = map[string]map[string]string{}
	for ref, e := range entries {
		tag, err := name.NewTag(ref, name.StrictValidation)
		if err != nil {
			return "", nil, err
		}
		repository := tag.RepositoryStr()
		if files[repository] == nil {
			files[repository] = map[string]string{}
		}
		for _, blob := range append(slices.Clone(e.manifest.Layers), e.manifest.Config) {
			files[repository][blob.Digest.String()] = filepath.Join(folder, e.key, "blobs", blob.Digest.Algorithm, blob.Digest.Hex)
		}
	}
	return folder, files, nil
}

// Push makes built images available in the registry at addr ("host:port", plain http) under the names that a
// containerd mirror of their hosts asks for: registry.k8s.io/pause:3.10 as pause:3.10. Images and blobs that the
// registry has are left alone. Two images of different hosts that would get the same name are an error.
func (c *Catalogue) Push(ctx context.Context, addr string, refs []string) error {
	entries, err := c.entries(ctx, refs)
	if err != nil {
		return err
	}
	targets := map[string]string{} // ref by mirror path
	for ref := range entries {
		tag, err := name.NewTag(ref, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("pushing images: %w", err)
		}
		target := tag.RepositoryStr() + ":" + tag.TagStr()
		if other, found := targets[target]; found {
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
			e, image := entries[ref], v1.Image(nil)
			if err == nil {
				image, err = e.Image(e.Digest)
			}
			if err == nil {
				err = remote.Push(tag, image, remote.WithContext(ctx), remote.WithTransport(transport))
			}
			if err != nil {
				return fmt.Errorf("pushing %s to %s: %w", ref, addr, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// LoadDocker makes a built image known to a Docker engine and returns the name that it has there. The name ends in a
// part of the image's digest, so that another content has another name; what the engine has is not sent again.
func (c *Catalogue) LoadDocker(ctx context.Context, docker *client.Client, ref string) (string, error) {
	entries, err := c.entries(ctx, []string{ref})
	if err != nil {
		return "", err
	}
	image := entries[ref]
	loaded := ref + "-" + image.Digest.Hex[:12] // as long as Docker itself shortens identifiers to
	_, err = docker.ImageInspect(ctx, loaded)
	if err == nil {
		return loaded, nil
	}
	if !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("asking Docker for image %s: %w", loaded, err)
	}
	if err := image.load(ctx, docker, loaded); err != nil {
		return "", fmt.Errorf("loading image %s into Docker: %w", loaded, err)
	}
	return loaded, nil
}

// Save writes a built image to w, under its own name, as docker save does, for docker load and the tools of registries.
func (c *Catalogue) Save(ctx context.Context, ref string, w io.Writer) error {
	entries, err := c.entries(ctx, []string{ref})
	if err == nil {
		err = entries[ref].archive(w, ref)
	}
	if err != nil {
		return fmt.Errorf("saving image %s: %w", ref, err)
	}
	return nil
}

func (e entry) archive(w io.Writer, as string) error {
	image, err := e.Image(e.Digest)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(as)
	if err != nil {
		return err
	}
	return tarball.Write(tag, image, w)
}

func (e entry) load(ctx context.Context, docker *client.Client, loaded string) error {
	archive, w := io.Pipe()
	go func() { w.CloseWithError(e.archive(w, loaded)) }()
	defer archive.Close() // ends the writer if Docker stops reading
	response, err := docker.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return err
	}
	defer response.Close()
	// A failure comes inside an answer of status 200.
	for decoder := json.NewDecoder(response); ; {
		var message struct{ Error string }
		if err := decoder.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading Docker's answer: %w", err)
		}
		if message.Error != "" {
			return errors.New(message.Error)
		}
	}
}
