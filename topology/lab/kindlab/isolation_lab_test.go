//go:build lab

package kindlab_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// onlyRootReaches checks that a process of another user does not reach the lab's registry,
// and that root does, and that the lab does not reach a port of the machine.
func onlyRootReaches(ctx context.Context, t *testing.T, lab *kindlab.Lab) {
	addr := lab.Registry().Addr
	connect := func(uid uint32) error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", addr.Addr(), addr.Port()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := connect(0); err != nil {
		t.Fatalf("root does not reach the registry at %s: %v", addr, err)
	}
	before := droppedIn(t, lab.Topology.Name, "output")
	if err := connect(65534); err == nil {
		t.Errorf("uid 65534 reaches the registry at %s", addr)
	}
	if droppedIn(t, lab.Topology.Name, "output") == before {
		t.Error("the rules have dropped nothing of it")
	}
	// The first address of a network is the machine's.
	machine := lab.Topology.Networks[0].Subnet.Addr().Next().String()
	before = droppedIn(t, lab.Topology.Name, "input")
	node := lab.Topology.Clusters[0].Nodes[0].Name
	said, err := lab.Node(node).Exec(ctx, "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/"+machine+"/22")
	if err == nil || strings.Contains(err.Error(), "refused") || droppedIn(t, lab.Topology.Name, "input") == before {
		t.Errorf("a connection from %s to %s port 22 is not dropped: %s %v", node, machine, said, err)
	}
}

// droppedIn counts the packets that a chain of a lab's table has dropped.
func droppedIn(t *testing.T, lab, chain string) (packets uint64) {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "relapse-" + lab}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				packets += counter.Packets
			}
		}
	}
	return packets
}
