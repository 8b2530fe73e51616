package cilium

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/relapse-dev/relapse/framework/component/cilium/agentlog"
	"github.com/relapse-dev/relapse/framework/component/workload"
)

// Starts remembers how the starts of agents ended. Kubelet has the logs of two starts
// only while the second one runs, and what is asked of an agent later needs both. The
// zero value has seen no agent. It is not safe for use by several goroutines.
type Starts struct {
	// ends are the ends of a pod's starts, the oldest first.
	ends map[types.UID][]agentlog.End
}

// stage is how far an agent has come.
type stage int

const (
	starting  stage = iota
	up              // it runs, and its start is over
	refusing        // its newest start was refused, the one before it ended in another way or was not seen
	refuses         // its newest two starts were refused for the same reason
	brokenOff       // its newest start ended for a reason that says nothing of the version
)

type progress struct {
	stage stage
	says  string
}

func (s *Starts) see(a AgentLog) progress {
	if s.ends == nil {
		s.ends = map[types.UID][]agentlog.End{}
	}
	id := a.Pod.UID
	for _, end := range []agentlog.End{agentlog.Read(a.Before), a.End()} {
		i, seen := slices.BinarySearchFunc(s.ends[id], end.At, func(e agentlog.End, at time.Time) int { return e.At.Compare(at) })
		if end.Cause != agentlog.None && !seen {
			s.ends[id] = slices.Insert(s.ends[id], i, end)
		}
	}

	end := a.End()
	switch {
	case end.Cause == agentlog.None && workload.Running(a.Pod) && a.Up():
		return progress{up, ""}
	case end.Cause == agentlog.None && workload.Running(a.Pod):
		return progress{starting, a.String()}
	case end.Cause == agentlog.None:
		// Or the pod's status is older than the log, which is that of the next start.
		return progress{starting, "it has ended and not said why: " + a.String()}
	case end.Cause != agentlog.Refused:
		return progress{brokenOff, fmt.Sprintf("it ended for a reason that is %s, not the version's: %s", end.Cause, end.Says)}
	case a.Up():
		return progress{brokenOff, "it ended after it had started: " + end.Says}
	}
	i := slices.IndexFunc(s.ends[id], func(e agentlog.End) bool { return e.At.Equal(end.At) })
	if i > 0 && s.ends[id][i-1].Same(end) {
		return progress{refuses, end.Says}
	}
	return progress{refusing, "it has refused once: " + end.Says}
}

// refusals says of some nodes' agents which refuse to start, in their own words. Pending
// names one that is on its way; the error is about an agent whose start tells nothing.
func (s *Starts) refusals(nodes []string, logs map[string]AgentLog) (said, pending string, err error) {
	var refused, running []string
	for _, node := range nodes {
		log, there := logs[node]
		if !there {
			pending = node + " has no such agent"
			continue
		}
		switch p := s.see(log); p.stage {
		case starting, refusing:
			pending = node + ": " + p.says
		case up:
			running = append(running, node)
		case refuses:
			refused = append(refused, node+": "+p.says)
		case brokenOff:
			err = fmt.Errorf("the agent on %s does not run: %s", node, p.says)
		}
	}
	said = strings.Join(refused, "; ")
	if len(refused) > 0 && len(running) > 0 { // image and configuration are the same: the reason is the node's
		err = fmt.Errorf("the agent runs on %s, and refuses to start on another node: %s", strings.Join(running, ", "), said)
	}
	return said, pending, err
}
