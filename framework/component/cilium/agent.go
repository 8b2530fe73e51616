package cilium

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	// Text is the log of the container that runs, or of the one that ended last. Before is that of
	// the container before it; empty where kubelet does not have it.
	Text, Before string
}

// WroteRules reports whether the rules on the node are the agent's: the slice
// says so when the vendor's code has returned.
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

// Logs are the logs of the agents in this state on some nodes, by node. A node whose
// agent is still of another image, or was not restarted yet, is missing.
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

// WriteRules is the action that brings configuration and agents to this state, and waits until the
// agent of each of these nodes has written its rules.
func (s Cilium) WriteRules(nodes ...string) framework.Action {
	return s.runUntil(nodes, "to write its rules", AgentLog.WroteRules)
}

// Try is WriteRules for a state in which the agents may refuse to start. It waits
// until the agent of each of these nodes is up, or has refused twice in a row. An agent
// that ends for another reason says nothing of its version: kubelet starts it again, and
// if that does not help the wait fails. What is seen goes into starts.
func (s Cilium) Try(nodes []string, starts *Starts) framework.Action {
	return s.runUntil(nodes, "to write its rules, or to refuse to start twice", func(a AgentLog) bool {
		p := starts.see(a)
		return p.stage == up || p.stage == refuses
	})
}

// restartedWithin bounds how long a wait for an agent's next start may take. Kubelet
// starts an ended container again after pauses of 0, 10, 20, 40 and 80 s.
const restartedWithin = 2 * time.Minute

// Refusals is what the agents of these nodes say that do not start in this state; empty where all
// are up. An agent refuses where its version says so twice in a row, in the same words. Refusals
// waits for the second start, but for what starts has seen before. It is an error if an agent has
// ended for another reason, or has not come so far: whether that version starts is then unknown.
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
