package upgrade

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/history"
)

// Kinds of steps that a history of an upgrade has besides install and baseline.
const (
	kindRest    framework.StepKind = "rest"    // the lab is watched before anything changes
	kindRelease framework.StepKind = "release" // what a version has for all nodes is brought to the cluster
	kindNode    framework.StepKind = "node"    // the agent of a node is replaced
	kindHalf    framework.StepKind = "half"    // half of a part is replaced
	// the node that answers for an address by ARP changes
	kindFailover framework.StepKind = "failover"
	kindMigrate  framework.StepKind = "migrate" // what the old version has left is brought to the new one's types
	kindRestart  framework.StepKind = "restart" // an agent that the rollout has not reached starts again
	kindAfter    framework.StepKind = "after"   // the lab is watched after a rollout
	kindKernels  framework.StepKind = "kernels" // the nodes' kernels are read
	kindUndo     framework.StepKind = "undo"    // a node gets the new version, and the old one again as soon as that is ready
)

// direction is a rollout: of the new version, or of the old one after it.
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

// undone is the node of which an upgrade is undone at once: one whose agent serves Services of the probes, or none.
func (u Upgrade) undone() string {
	switch {
	case u.Parts != nil:
		return ""
	case slices.Contains(u.Nodes, worker1):
		return worker1
	}
	return u.Nodes[len(u.Nodes)-1]
}

// stepOf is a step of a kind, in a direction or at a moment, and of a part; empty: of none.
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
	version string // of the agent that is replaced or restarted, or of what is released
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
		if u.Half == nil && u.Crash != nil && i+1 == len(parts)/2 { // with one node there is no half
			steps = append(steps, restart(parts[len(parts)-1]))
		}
	}
	if d == upgrading && u.Migrate.Do != nil {
		steps = append(steps, rolloutStep{framework.StepID{Kind: kindMigrate}, history.Release, "", to, u.Migrate.Name})
	}
	return steps
}
