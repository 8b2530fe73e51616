// Package fault holds the changes that start incidents, each with its undo.
package fault

import "context"

// Fault is a change that starts an incident.
type Fault struct {
	// Name says what happens, in a few words.
	Name string
	// Inject makes it happen, and returns when it has.
	Inject func(ctx context.Context) error
	// Held reports whether the fault has taken hold: it looks at the lab and
	// not at what Inject did. When it has not, it returns what it saw.
	TookEffect func(ctx context.Context) (held bool, saw string, err error)
	// Undo takes the fault back, as far as it was injected, and returns when
	// the lab is as before.
	Undo func(ctx context.Context) error
	// Replaced is set where installing the next variant puts what the fault has
	// changed into its own state: Undo is for a lab that is kept.
	Replaced bool
}
