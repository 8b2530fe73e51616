package upgrade

import (
	"context"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// watch looks at the routers, again and again, from start to stop.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	looks  []snapshot.Snapshot
}

func startWatch(ctx context.Context, look func(context.Context) snapshot.Snapshot) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			now := look(ctx)
			if ctx.Err() != nil {
				return // a look that was cut short shows faults that are not there
			}
			w.looks = append(w.looks, now)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return w
}

// stop ends the looking, and returns all that was seen, oldest first.
func (w *watch) stop() []snapshot.Snapshot {
	w.cancel()
	w.done.Wait()
	return w.looks
}
