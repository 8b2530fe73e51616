package upgrade

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
)

// Kinds of steps of an upgrade's history, besides install and baseline.
const (
	kindRest    framework.StepKind = "rest"    // the lab is watched before anything changes
	kindRelease framework.StepKind = "release" // a version's objects for the whole cluster are applied
	kindNode    framework.StepKind = "node"    // the agent of a node is replaced
	kindHalf    framework.StepKind = "half"    // half of a part is replaced
	// the node that answers for an address by ARP changes
	kindFailover framework.StepKind = "failover"
	kindMigrate  framework.StepKind = "migrate" // objects of the old version's types become objects of newer types
	kindRestart  framework.StepKind = "restart" // an agent that the rollout has not reached starts again
	kindAfter    framework.StepKind = "after"   // the lab is watched after a rollout
	kindKernels  framework.StepKind = "kernels" // the nodes' kernels are read
	kindUndo     framework.StepKind = "undo"    // a node gets the new version, and once that is ready the old one again
)

// direction is the rollout of the new version, or the rollback to the old one.
type direction string

const (
	upgrading   direction = "upgrade"
	rollingBack direction = "rollback"
)

// Moments at which the nodes' kernels are read.
const (
	beforeUpgrade = "before"
	afterRollback = "after"
)

var stepRest, stepUndo = framework.StepID{Kind: kindRest}, framework.StepID{Kind: kindUndo}

// undone is the node whose upgrade is undone at once: worker1 if in Nodes, as it uses Services; empty if Parts is set.
func (u Upgrade) undone() string {
	switch {
	case u.Parts != nil:
		return ""
	case slices.Contains(u.Nodes, worker1):
		return worker1
	}
	return u.Nodes[len(u.Nodes)-1]
}

// stepOf is the step of a kind, in a direction or at a moment, for a part, if part is not empty.
func stepOf[D ~string](kind framework.StepKind, when D, part string) framework.StepID {
	if part != "" {
		part = "/" + part
	}
	return framework.StepID{Kind: kind, Part: string(when) + part}
}

type rolloutStep struct {
	id      framework.StepID
	what    history.Action
	part    string // empty: the whole cluster
	version string // released, or of the agent that is replaced or restarted
	name    string
}

// rolloutSteps are the steps that replace one version by another, without the watch after them.
func (u Upgrade) rolloutSteps(d direction, from, to string) []rolloutStep {
	restart := func(part string) rolloutStep {
		return rolloutStep{stepOf(kindRestart, d, ""), history.Restart, part, from, from + " restarted on " + part}
	}
	var steps []rolloutStep
	if u.Release != nil {
		id := stepOf(kindRelease, d, "")
		steps = append(steps, rolloutStep{id, history.Release, "", to, to + " released to the cluster"})
	}
	parts := u.changed()
	for i, part := range parts {
		if u.Half != nil {
			steps = append(steps, rolloutStep{stepOf(kindHalf, d, part), history.Roll, part, to, "half of " + part + " gets " + to})
		}
		if u.Half != nil && u.Crash != nil && i == 0 {
			steps = append(steps, restart(part))
		}
		steps = append(steps, rolloutStep{stepOf(kindNode, d, part), history.Roll, part, to, part + " gets " + to})
		if u.Half == nil && u.Crash != nil && i+1 == len(parts)/2 { // one node has no half
			steps = append(steps, restart(parts[len(parts)-1]))
		}
	}
	if d == upgrading && u.Migrate.Do != nil {
		steps = append(steps, rolloutStep{framework.StepID{Kind: kindMigrate}, history.Release, "", to, u.Migrate.Name})
	}
	return steps
}
