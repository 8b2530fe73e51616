//go:build lab

package snapshot

import (
	"context"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
)

// TestContainerFirewall reads rules that were written by a program in a network
// namespace of its own.
func TestContainerFirewall(t *testing.T) {
	node := exec.CommandContext(t.Context(), "unshare", "--net", "--", "sh", "-c",
		"iptables-nft -N KUBE-POD-FW-A && iptables-nft -A FORWARD -d 10.20.65.3 -j KUBE-POD-FW-A && exec sleep 1m")
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait() // it was killed
	})
	read := ContainerFirewall(func(context.Context) (int, error) { return node.Process.Pid, nil })
	var rules []Rule
	err := await.Until(t.Context(), "the rules", 50*time.Millisecond, 10*time.Second, func(ctx context.Context) (_ bool, _ string, err error) {
		rules, err = read(ctx)
		return len(rules) == 1, strconv.Itoa(len(rules)) + " rules", err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := rules[0]; got.Chain != "FORWARD" || got.Target != "KUBE-POD-FW-A" || got.Destination.String() != "10.20.65.3/32" {
		t.Errorf("%+v", got)
	}
}
