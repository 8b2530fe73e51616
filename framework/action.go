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

// Fault is a change that starts an incident.
type Fault struct {
	Name   string
	Inject Action
	// TookEffect reports whether the fault took effect, by reading the state of the lab. If
	// it did not, saw is what it read.
	TookEffect Condition
	// Undo undoes the fault, as far as it was injected, and returns when the lab is as
	// before. Nil: there is nothing to undo.
	Undo Action
	// Replaced is set if the installation of the next variant overwrites what the fault has
	// changed: then Undo is needed only for a lab that is kept.
	Replaced bool
}
