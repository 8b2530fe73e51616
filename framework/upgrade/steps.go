package upgrade

import (
	"github.com/relapse-dev/relapse/framework"
)

// Kinds of steps that a history of an upgrade has besides framework.KindInstall and
// framework.KindBaseline.
const (
	kindRest    framework.StepKind = "rest"    // the lab is watched before anything changes
	kindRelease framework.StepKind = "release" // what a version has for all nodes is brought to the cluster
	kindNode    framework.StepKind = "node"    // the agent of a node is replaced
	kindHalf    framework.StepKind = "half"    // half of a part is replaced
	kindRestart framework.StepKind = "restart" // an agent that the rollout has not reached starts again
	kindAfter   framework.StepKind = "after"   // the lab is watched after a rollout
	kindKernels framework.StepKind = "kernels" // the nodes' kernels are read
)

// direction is a rollout: that of the new version, or that of the old one after it.
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

var stepRest = framework.StepID{Kind: kindRest}

func stepRelease(d direction) framework.StepID {
	return framework.StepID{Kind: kindRelease, Part: string(d)}
}

func stepNode(d direction, node string) framework.StepID {
	return framework.StepID{Kind: kindNode, Part: string(d) + "/" + node}
}

func stepHalf(d direction, part string) framework.StepID {
	return framework.StepID{Kind: kindHalf, Part: string(d) + "/" + part}
}

func stepRestart(d direction) framework.StepID {
	return framework.StepID{Kind: kindRestart, Part: string(d)}
}

func stepAfter(d direction) framework.StepID {
	return framework.StepID{Kind: kindAfter, Part: string(d)}
}

func stepKernels(when string) framework.StepID {
	return framework.StepID{Kind: kindKernels, Part: when}
}
