package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// ImagesScope is the scope of images in Progress. The build of each is a wait.
const ImagesScope = "images"

// Build builds the images that the cache lacks. Progress gets the number of cached ones, and each build.
func Build(ctx context.Context, from *images.Catalogue, refs []string, p engine.Progress) (images.Summary, error) {
	underWay := map[string]await.Sight{} // by reference
	reused, noted := 0, false
	noteReused := func(all bool) {
		switch {
		case noted || reused == 0:
		case all:
			p.Note(ImagesScope, fmt.Sprintf("all %d are in the cache", reused))
		default:
			p.Note(ImagesScope, fmt.Sprintf("%d are in the cache already", reused))
		}
		noted = true
	}
	summary, err := from.Build(ctx, refs, func(e images.Event) {
		if e.Step == images.Reused {
			reused++
			return
		}
		noteReused(false)
		s, begun := underWay[e.Ref]
		if !begun {
			s = await.Sight{What: e.Ref, Began: time.Now().Add(-e.Elapsed)}
		}
		s.Saw, s.Over = e.String(), e.Step == images.Built
		underWay[e.Ref] = s
		p.Waits(ImagesScope, s)
		if s.Over {
			delete(underWay, e.Ref)
			p.Note(ImagesScope, e.Ref+" "+e.String())
		}
	})
	for _, s := range underWay { // not built
		s.Over = true
		p.Waits(ImagesScope, s)
	}
	noteReused(err == nil)
	return summary, err
}

// ServedTo are the images that a lab's registry serves to some variants, and other images, each once.
func ServedTo(variants []framework.Variant, besides ...string) []string {
	refs := slices.Clone(besides)
	for _, v := range variants {
		refs = append(refs, v.Images...)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// ImagesOf names every image that must be built for some variants of a scenario, each once: the lab's own, and what
// its registry serves. With the vendors' own images (upstream) only ours are built.
func ImagesOf(s framework.Scenario, upstream bool, variants ...framework.Variant) []string {
	refs := ServedTo(variants, kindlab.ImagesOf(s.Topology)...)
	if upstream {
		refs = slices.DeleteFunc(refs, func(ref string) bool { return !kindlab.Ours(ref) })
	}
	return refs
}

// FormError says that a component is built in another form than a scenario's script runs.
type FormError struct {
	Scenario string
	*images.FormError
}

func (e *FormError) Error() string {
	return fmt.Sprintf("the script of %s runs %s as a %s, and %s is built %s", e.Scenario, e.Want.Component, e.Want.Form, e.Want.Version,
		e.Built)
}

// RelapseStatus is the exit status for bad input.
func (*FormError) RelapseStatus() int { return 2 }

// Know makes the catalogue describe the images of some variants of a scenario. The error joins an
// *images.UnknownVersionError for each image that no recipe builds, and a *FormError for each tested component that
// is built in a form other than the variant's.
func Know(c *images.Catalogue, s framework.Scenario, upstream bool, variants ...framework.Variant) error {
	errs := []error{c.Know(ImagesOf(s, upstream, variants...)...)}
	for _, v := range variants {
		for _, name := range slices.Sorted(maps.Keys(v.Components)) {
			t, tested := s.Find(name)
			if !tested || upstream {
				continue
			}
			_, err := c.Find(images.Want{Component: t.Component(), Version: v.Components[name], Form: images.Form(v.Form)})
			if built, ok := errors.AsType[*images.FormError](err); ok { // versions that no recipe builds are among the errors of Know
				errs = append(errs, &FormError{s.Incident.Name, built})
			}
		}
	}
	return errors.Join(errs...)
}
