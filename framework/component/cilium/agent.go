package cilium

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium/agentlog"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// AgentLog is the log of a node's newest agent, and how far that agent has come.
type AgentLog struct {
	Pod corev1.Pod
	// Text is the log of the container that runs, or ended last; Before is its predecessor's, empty if kubelet has none.
	Text, Before string
}

// WroteRules reports whether the agent has written its rules: the slice says so when the vendor's code has returned.
func (a AgentLog) WroteRules() bool {
	return strings.Contains(a.Text, "The iptables rules are installed")
}

// Up reports whether the agent has come to the end of its start: each slice wires pods last.
func (a AgentLog) Up() bool {
	return strings.Contains(a.Text, "Pods are wired by the CNI plugins")
}

// End is why the agent's newest start ended.
func (a AgentLog) End() agentlog.End { return agentlog.Read(a.Text) }

// String says how far the agent is, for the error of a wait.
func (a AgentLog) String() string {
	lines := strings.Split(strings.TrimSpace(a.Text), "\n")
	return fmt.Sprintf("%s, and its log ends with %q", workload.DescribePod(a.Pod), lines[len(lines)-1])
}

// Logs are the logs of the agents in this state, by node. An agent of another image, or not restarted yet, has none.
func (s Cilium) Logs(ctx context.Context, c *kindlab.Cluster, nodes []string) (map[string]AgentLog, error) {
	pods, err := agents.Pods.List(ctx, c)
	if err != nil {
		return nil, err
	}
	logs := map[string]AgentLog{}
	for _, pod := range pods {
		if !slices.Contains(nodes, pod.Spec.NodeName) || pod.DeletionTimestamp != nil || !workload.Started(pod) ||
			pod.Spec.Containers[0].Image != s.Agent || pod.Annotations["relapse.dev/restarted"] != s.Restart {
			continue
		}
		starts, err := workload.Starts(ctx, c, pod)
		if err != nil {
			return nil, err
		}
		log := AgentLog{Pod: pod, Text: starts[len(starts)-1]}
		if len(starts) > 1 {
			log.Before = starts[0]
		}
		logs[pod.Spec.NodeName] = log
	}
	return logs, nil
}

// WriteRules brings configuration and agents to this state, and waits until each of these nodes' agents wrote rules.
func (s Cilium) WriteRules(nodes ...string) framework.Action {
	return s.runUntil(nodes, "to write its rules", AgentLog.WroteRules)
}

// Try is WriteRules for a state in which agents may refuse to start: it waits until the agent of each of these nodes is
// up, or has refused twice in a row. An agent that ends for another reason is started again by kubelet; if that does
// not help the wait fails. What is seen goes into starts.
func (s Cilium) Try(nodes []string, starts *Starts) framework.Action {
	return s.runUntil(nodes, "to write its rules, or to refuse to start twice", func(a AgentLog) bool {
		p := starts.see(a)
		return p.stage == up || p.stage == refuses
	})
}

// restartedWithin bounds the wait for an agent's next start, after kubelet's pauses of 0, 10, 20, 40 and 80 s.
const restartedWithin = 2 * time.Minute

// Refusals is what the agents of these nodes say that do not start in this state; empty if all are up. An agent refuses
// if its version says so twice in a row, in the same words: Refusals waits for the second start, unless starts has seen
// it. An agent that ended for another reason, or is not that far, is an error: whether its version starts is unknown.
func (s Cilium) Refusals(ctx context.Context, r *framework.Run, nodes []string, starts *Starts) (said string, err error) {
	var broken error
	err = await.Until(ctx, "each agent of "+s.Agent+" to be up, or to refuse to start twice", 100*time.Millisecond, restartedWithin,
		func(ctx context.Context) (bool, string, error) {
			logs, err := s.Logs(ctx, labaccess.Cluster(r), nodes)
			if err != nil {
				return false, "", err
			}
			var pending string
			said, pending, broken = starts.refusals(nodes, logs)
			return pending == "" || broken != nil, pending, nil
		})
	if err := errors.Join(err, broken); err != nil {
		return "", err
	}
	return said, nil
}

func (s Cilium) runUntil(nodes []string, what string, holds func(AgentLog) bool) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		if err := s.Configure(ctx, r); err != nil {
			return err
		}
		if err := s.apply(ctx, r, agentsManifest); err != nil {
			return err
		}
		c := labaccess.Cluster(r)
		// Not ready: one that refuses never is.
		if err := agents.Started(ctx, c, nodes, agentsWithin); err != nil {
			return err
		}
		return await.Until(ctx, "each agent of "+s.Agent+" "+what, 100*time.Millisecond, agentsWithin,
			func(ctx context.Context) (bool, string, error) {
				logs, err := s.Logs(ctx, c, nodes)
				if err != nil {
					return false, "", err
				}
				for _, node := range nodes {
					if log, there := logs[node]; !there {
						return false, node + " has none", nil
					} else if !holds(log) {
						return false, node + ": " + log.String(), nil
					}
				}
				return true, "", nil
			})
	}
}

// Starts remembers how agents' starts ended: kubelet has two logs only during the second. Not for several goroutines.
type Starts struct {
	// ends are the ends of a pod's starts, the oldest first.
	ends map[types.UID][]agentlog.End
}

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
		// Or the pod's status is older than the log of its next start.
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

// refusals says which agents refuse to start, in their own words. pending names an agent that may still start. The
// error is about an agent that ended for another reason, or refuses on one node and runs on another.
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
