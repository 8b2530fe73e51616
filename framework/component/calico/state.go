package calico

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

func inAgent(ctx context.Context, node *kindlab.Node, command ...string) (string, error) {
	const script = `id=$(crictl ps --quiet --state running --name "^` + agent + `$")
exec crictl exec --sync "$id" "$@"`
	return node.Exec(ctx, append([]string{"sh", "-ec", script, "sh"}, command...)...)
}

// NotReady is why calico-node on a node says that it is not ready, in its own words;
// empty if it says that it is.
func NotReady(ctx context.Context, node *kindlab.Node) (string, error) {
	said, err := inAgent(ctx, node, "sh", "-c", "calico-node -felix-ready -bird-ready 2>&1 && echo ready || true")
	if line := notReady.FindString(said); line != "" || strings.HasSuffix(strings.TrimSpace(said), "ready") {
		return line, nil
	}
	return "", fmt.Errorf("asking calico-node on %s whether it is ready: %q: %w", node.Name(), said, err)
}

// notReady is how it begins the line that says why (node/pkg/health).
var notReady = regexp.MustCompile(`calico/node is not ready: .*`)

// LastLook is when calico-node -monitor-addresses has last autodetected a node's
// address and found the Node's InternalIP on an interface; zero for never.
func LastLook(ctx context.Context, node *kindlab.Node) (time.Time, error) {
	log, err := node.Exec(ctx, "sh", "-c", "cat /var/log/pods/kube-system_"+agent+"-*/"+agent+"/*.log")
	if err != nil {
		return time.Time{}, err
	}
	return lastLook(log)
}

// lastLook reads calico-node's log as the kubelet keeps it.
func lastLook(log string) (time.Time, error) {
	var last time.Time
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(line, " ")
		if !strings.Contains(text, "monitor-addresses/") || !strings.Contains(text, "Including CIDR information from host interface") {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			return last, fmt.Errorf("reading %s's log: %w", agent, err)
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}
