//go:build lab

package snapshot

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestFirewalls reads rules that programs of both kinds have written, in namespaces such as a
// node's: it has processes of its own, and with them its own /proc.
func TestFirewalls(t *testing.T) {
	rules := func(kind, address, chain string) string {
		return fmt.Sprintf("iptables-%[1]s -N %[3]s && iptables-%[1]s -A FORWARD -d %[2]s -j %[3]s", kind, address, chain)
	}
	const ready = "the rules are there"
	node := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		rules("nft", "10.20.65.3", "KUBE-POD-FW-A")+" && "+rules("legacy", "10.20.65.4", "KUBE-POD-FW-B")+" && exec sleep 1m")
	must.NoError(t, node.Start())
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait() // it was killed
	})
	var got []string
	must.NoError(t, await.Until(t.Context(), ready, 50*time.Millisecond, 10*time.Second, func(ctx context.Context) (bool, string, error) {
		child, err := exec.CommandContext(ctx, "pgrep", "--parent", fmt.Sprint(node.Process.Pid)).Output()
		if err != nil {
			return false, "no process", nil
		}
		var pid int
		if _, err := fmt.Sscan(string(child), &pid); err != nil {
			return false, "", err
		}
		f := firewallReader("node", fakeMachine{pid: pid})(ctx)
		got = each.Of(f.Rules.Items, func(r Rule) string { return r.Text })
		return len(got) == 2, strings.Join(got, "; ") + f.Rules.Error, nil
	}))
	must.Equal(t, "", []string{"-A FORWARD -d 10.20.65.3/32 -j KUBE-POD-FW-A", "-A FORWARD -d 10.20.65.4/32 -j KUBE-POD-FW-B"}, got)
}
