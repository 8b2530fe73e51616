// Package registry is a client of a lab's registry. It resolves names to digests,
// moves tags, and reads the nodes' pulls from the registry's log.
//
// Images have the vendors' names. The registry has one name space for all vendors' hosts, as
// containerd's mirrors require: docker.io/library/x:1 is library/x:1 there.
package registry

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Client is a client of one registry, over plain HTTP.
type Client struct{ addr string }

// New makes a client of the registry at addr ("host:port"). It does not connect yet.
func New(addr string) *Client { return &Client{addr} }

var direct = func() *http.Transport {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil // proxies cannot reach a lab's addresses
	return t
}()

func options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(direct), remote.WithUserAgent("relapse")}
}

func (c *Client) here(image string) (name.Reference, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", image, err)
	}
	repository := c.addr + "/" + ref.Context().RepositoryStr()
	if tag, ok := ref.(name.Tag); ok {
		return name.NewTag(repository+":"+tag.TagStr(), name.Insecure)
	}
	return name.NewDigest(repository+"@"+ref.Identifier(), name.Insecure)
}

// Resolve returns the digest of an image. The default tag is latest.
func (c *Client) Resolve(ctx context.Context, image string) (string, error) {
	ref, err := c.here(image)
	if err != nil {
		return "", err
	}
	found, err := remote.Head(ref, options(ctx)...)
	if err != nil {
		return "", c.explain(image, "resolving "+image, err)
	}
	return found.Digest.String(), nil
}

// Move moves the tag of an image to the image of another name in the same repository,
// and returns the digest. The tag need not exist.
func (c *Client) Move(ctx context.Context, image, to string) (string, error) {
	doing := fmt.Sprintf("moving tag %s to %s", image, to)
	ref, err := c.here(image)
	if err != nil {
		return "", err
	}
	tag, ok := ref.(name.Tag)
	if !ok {
		return "", fmt.Errorf("%s: a digest cannot be moved", doing)
	}
	target, err := c.here(to)
	if err != nil {
		return "", err
	}
	if target.Context().String() != tag.Context().String() {
		return "", fmt.Errorf("%s: they are in different repositories", doing)
	}
	found, err := remote.Get(target, options(ctx)...)
	if err != nil {
		return "", c.explain(to, doing, err)
	}
	if err := remote.Tag(tag, found, options(ctx)...); err != nil {
		return "", c.explain(image, doing, err)
	}
	return found.Digest.String(), nil
}

// File returns a file of an image. file is its absolute path in the image.
func (c *Client) File(ctx context.Context, image, file string) ([]byte, error) {
	doing := fmt.Sprintf("reading %s of image %s", file, image)
	ref, err := c.here(image)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(ref, options(ctx)...)
	if err != nil {
		return nil, c.explain(image, doing, err)
	}
	tree := mutate.Extract(img)
	defer tree.Close()
	for files := tar.NewReader(tree); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: there is no such file", doing)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		if path.Join("/", header.Name) != file {
			continue
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		return data, nil
	}
}

// Copy copies an image that this registry does not have from another one, under the same name.
func (c *Client) Copy(ctx context.Context, image, from string) error {
	doing, other := "copying "+image, New(from)
	source, err := other.here(image)
	if err != nil {
		return err
	}
	target, err := c.here(image)
	if err != nil {
		return err
	}
	found, err := remote.Get(source, options(ctx)...)
	if err != nil {
		return other.explain(image, doing, err)
	}
	return c.explain(image, doing, remote.Push(target, found, options(ctx)...))
}

// explain adds the operation to an error of the library, and says so if the registry has no such
// image. A nil error stays nil.
func (c *Client) explain(image, doing string, err error) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*transport.Error](err); ok && answer.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s: the registry at %s has no image %s", doing, c.addr, image)
	}
	return fmt.Errorf("%s: registry %s: %w", doing, c.addr, err)
}
