package framework

import "context"

// Fault is a change that starts an incident.
type Fault struct {
	// Name describes it in a few words.
	Name string
	// Inject makes the change, and returns when it is complete.
	Inject func(ctx context.Context) error
	// TookEffect reports whether the fault took effect, by reading the state of the lab. If
	// it did not, saw is what it read.
	TookEffect func(ctx context.Context) (effect bool, saw string, err error)
	// Undo undoes the fault, as far as it was injected, and returns when the lab is as
	// before.
	Undo func(ctx context.Context) error
	// Replaced is set if the installation of the next variant overwrites what the fault has
	// changed: then Undo is needed only for a lab that is kept.
	Replaced bool
}
