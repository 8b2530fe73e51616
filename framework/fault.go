package framework

// Fault is a change that starts an incident.
type Fault struct {
	// Name describes it in a few words.
	Name string
	// Inject makes the change.
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
