package framework

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Action changes the lab of a run, and returns when the change is complete.
type Action func(ctx context.Context, r *Run) error

// InOrder does actions one after the other, up to the first one that fails.
func InOrder(actions ...Action) Action {
	return func(ctx context.Context, r *Run) error {
		for _, do := range actions {
			if err := do(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// AtOnce does actions at the same time. The first one that fails ends the others.
func AtOnce(actions ...Action) Action {
	return func(ctx context.Context, r *Run) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, do := range actions {
			group.Go(func() error { return do(ctx, r) })
		}
		return group.Wait()
	}
}
