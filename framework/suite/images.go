package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
)

// ImagesScope is the scope of images in Progress. The build of each is a wait.
const ImagesScope = "images"

// Build builds the images that the cache lacks. Progress gets the number of cached ones, and
// the progress of each build.
func Build(ctx context.Context, from Images, refs []string, p engine.Progress) (images.Summary, error) {
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
