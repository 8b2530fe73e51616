package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
)

// LoadDocker makes a built image known to a Docker engine and returns the name that it has there.
// The name ends in a part of the image's digest, so that an image of another content has another
// name; an image that the engine has is not sent again.
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

// Save writes a built image under its own name to w, in the format of docker save, for docker
// load and the tools of registries.
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
