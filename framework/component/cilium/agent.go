package cilium

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// AgentLog is the log of a node's newest agent, and how far that agent
// has come.
type AgentLog struct {
	Pod corev1.Pod
	// Text is the log of the container that runs, or of the one that ended
	// last.
	Text string
}

// WroteRules reports whether the rules on the node are the agent's: the slice
// says so when the vendor's code has returned.
func (a AgentLog) WroteRules() bool {
	return strings.Contains(a.Text, "The iptables rules are installed")
}

// Refusal is why the agent does not start, as the vendor's code says it; empty
// where it has not said so. The time is left out, because it differs between
// agents.
func (a AgentLog) Refusal() string {
	for line := range strings.Lines(a.Text) {
		if strings.Contains(line, "level=fatal") {
			if _, text, found := strings.Cut(line, "msg="); found {
				line = text
			}
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// String says how far the agent is, for the error of a wait.
func (a AgentLog) String() string {
	lines := strings.Split(strings.TrimSpace(a.Text), "\n")
	return fmt.Sprintf("%s, and its log ends with %q", workload.DescribePod(a.Pod), lines[len(lines)-1])
}

// Logs are those of the agents in this state on some nodes, by node. A node whose
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
		text, err := workload.Log(ctx, c, pod)
		if err != nil {
			return nil, err
		}
		logs[pod.Spec.NodeName] = AgentLog{pod, text}
	}
	return logs, nil
}

// WriteRules brings configuration and agents to this state, and waits until the
// agent of each of these nodes has written its rules.
func (s Cilium) WriteRules(ctx context.Context, c *kindlab.Cluster, nodes []string) error {
	_, err := s.runUntil(ctx, c, nodes, "to write its rules", AgentLog.WroteRules)
	return err
}

// Try is WriteRules for a state in which the agents may refuse to start. It waits
// until the agent of each of these nodes has done either.
func (s Cilium) Try(ctx context.Context, c *kindlab.Cluster, nodes []string) error {
	_, err := s.runUntil(ctx, c, nodes, "to write its rules, or to refuse to start", func(a AgentLog) bool {
		return a.WroteRules() || a.Refusal() != ""
	})
	return err
}

// Refusals is what the agents of these nodes say that do not start in this state;
// empty where none says so.
func (s Cilium) Refusals(ctx context.Context, c *kindlab.Cluster, nodes []string) (string, error) {
	logs, err := s.Logs(ctx, c, nodes)
	if err != nil {
		return "", err
	}
	var said []string
	for _, node := range nodes {
		if log := logs[node]; log.Refusal() != "" && !log.WroteRules() {
			said = append(said, node+": "+log.Refusal())
		}
	}
	return strings.Join(said, "; "), nil
}

// runUntil brings configuration and agents to this state, waits until the log
// of each node's agent is as asked, and returns the logs.
func (s Cilium) runUntil(ctx context.Context, c *kindlab.Cluster, nodes []string, what string, holds func(AgentLog) bool) (logs map[string]AgentLog, err error) {
	if err := s.Configure(ctx, c); err != nil {
		return nil, err
	}
	if err := s.apply(ctx, c, agentsManifest); err != nil {
		return nil, err
	}
	// Not ready: one that refuses never is.
	if err := agents.Started(ctx, c, nodes, agentsWithin); err != nil {
		return nil, err
	}
	err = await.Until(ctx, "each agent of "+s.Agent+" "+what, 100*time.Millisecond, agentsWithin,
		func(ctx context.Context) (bool, string, error) {
			if logs, err = s.Logs(ctx, c, nodes); err != nil {
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
	return logs, err
}
