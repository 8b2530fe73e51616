package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/await"
)

// ImagesScope is the scope of what progress is told of images: what their builds do, as
// what is seen of a wait for the image.
const ImagesScope = "images"

// Build makes sure that the cache holds images, and tells progress how many it held
// already, what happens to each of the others, and how long that took.
func Build(ctx context.Context, from Images, refs []string, p engine.Progress) (images.Summary, error) {
	under := map[string]await.Sight{} // way, by reference
	reused, told := 0, false
	tellReused := func(all bool) {
		switch {
		case told || reused == 0:
		case all:
			p.Note(ImagesScope, fmt.Sprintf("all %d are in the cache", reused))
		default:
			p.Note(ImagesScope, fmt.Sprintf("%d are in the cache already", reused))
		}
		told = true
	}
	summary, err := from.Build(ctx, refs, func(e images.Event) {
		if e.Step == images.Reused {
			reused++
			return
		}
		tellReused(false)
		s, begun := under[e.Ref]
		if !begun {
			s = await.Sight{What: e.Ref, Began: time.Now().Add(-e.Elapsed)}
		}
		s.Saw, s.Over = e.String(), e.Step == images.Built
		under[e.Ref] = s
		p.Waits(ImagesScope, s)
		if s.Over {
			delete(under, e.Ref)
			p.Note(ImagesScope, e.Ref+" "+e.String())
		}
	})
	for _, s := range under { // not built
		s.Over = true
		p.Waits(ImagesScope, s)
	}
	tellReused(err == nil)
	return summary, err
}
