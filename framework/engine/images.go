package engine

import (
	"context"
	"errors"
	"time"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
)

// imagesWithin bounds the wait until the images of all pods were read: one list of pods,
// from an API server that may be busy.
const imagesWithin = time.Minute

func (v *variantRun) readImages(ctx context.Context) error {
	v.h.Do(history.Images, "", func(a *history.Act) {
		reader, err := v.lane.lab.Open(ctx, []snapshot.Source{snapshot.RunningImages}, v.others())
		if err != nil {
			a.Err = err
			return
		}
		err = await.Until(ctx, "the images of the pods", v.c.Every(), imagesWithin, func(ctx context.Context) (bool, string, error) {
			s := reader.Collect(ctx).Only(snapshot.RunningImages)
			a.Images = s.ImagesInUse()
			unavailable := s.Unavailable()
			return len(unavailable) == 0, snapshot.Sentences(unavailable), nil
		})
		a.Err = errors.Join(err, reader.Close())
	})
	return ctx.Err()
}
