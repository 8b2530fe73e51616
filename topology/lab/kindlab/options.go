package kindlab

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Images provides the images of a lab. images.Catalogue implements it.
type Images interface {
	// LoadDocker loads an image into the Docker engine and returns the engine's reference of it.
	LoadDocker(ctx context.Context, docker *client.Client, ref string) (string, error)
	// Blobs returns a folder, and the files below it that are the images' blobs, by
	// repository and digest.
	Blobs(ctx context.Context, refs []string) (folder string, files map[string]map[string]string, err error)
	// Push puts images into the registry at addr (host:port, plain HTTP).
	Push(ctx context.Context, addr string, refs []string) error
}

// Options say how to bring a topology up.
type Options struct {
	Images Images
	// Serve are the images that the lab's registry serves in addition to the control
	// plane's, under the vendors' names.
	Serve []string
	// Upstreams are the registries of the vendors' published images, which the nodes
	// pull through caches in the lab. Without them all images are our own builds.
	Upstreams registry.Upstreams
	// Step, if set, is called when a step begins, and the function that it returns
	// when that step has ended. Steps overlap.
	Step func(name string) (done func(error))
	// Note, if set, gets remarks for the user.
	Note func(text string)
	Log  *slog.Logger
}

func (o Options) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}

func (o Options) step(name string, do func() error) error {
	if o.Step == nil {
		return do()
	}
	done := o.Step(name)
	err := do()
	done(err)
	return err
}
