package kindlab

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/docker/docker/client"

	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Images makes the images of a lab available. It is implemented by
// images.Catalogue.
type Images interface {
	// LoadDocker makes an image known to the Docker engine and returns the
	// reference under which the engine knows it.
	LoadDocker(ctx context.Context, docker *client.Client, ref string) (string, error)
	// Blobs returns the folder that holds blobs as <algorithm>/<hexadecimal digest>,
	// and the digests of those that images consist of, by repository.
	Blobs(ctx context.Context, refs []string) (folder string, byRepository map[string][]string, err error)
	// Push puts images into the registry at addr (host:port, plain HTTP).
	Push(ctx context.Context, addr string, refs []string) error
}

// Options say how a topology is made real.
type Options struct {
	Images Images
	// Serve names the images that the lab's registry serves to the nodes in
	// addition to the control plane's own, under the vendors' names.
	Serve []string
	// Upstreams, where there are any, are asked for what is not our own, as the
	// vendors publish it. The nodes ask through caches in the lab.
	Upstreams registry.Upstreams
	// Step, when set, is told when a step begins; the function that it
	// returns is told when that step has ended. Steps overlap.
	Step func(name string) (done func(error))
	// Note, when set, is told what somebody who watches should know.
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
