//go:build lab

package fault

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// box stands for a node: network and mount namespaces, which end with its process.
type box struct {
	name string
	pid  int
}

// newBox starts a box and sets lo up, and eth0 if there is an address.
func newBox(t *testing.T, name string) *box {
	t.Helper()
	// A /run of its own: named namespaces are files there.
	cmd := exec.Command("unshare", "--net", "--mount", "sh", "-c", "mount -t tmpfs run /run && ip link set lo up && touch /run/ready && exec sleep 1000")
	must.NoError(t, cmd.Start())
	b := &box{name: name, pid: cmd.Process.Pid}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	err := await.Until(t.Context(), "the machine "+name, 5*time.Millisecond, 10*time.Second, func(context.Context) (bool, string, error) {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/run/ready", b.pid))
		return err == nil, "not yet", nil
	})
	must.NoError(t, err)
	return b
}

func (b *box) Name() string { return b.name }

func (b *box) Exec(ctx context.Context, command ...string) (string, error) {
	enter := append([]string{"--target", strconv.Itoa(b.pid), "--net", "--mount"}, command...)
	out, err := exec.CommandContext(ctx, "nsenter", enter...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("on %s: %s: %w: %s", b.name, strings.Join(command, " "), err, out)
	}
	return string(out), nil
}

func (b *box) interfaces(t *testing.T) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(must.Get(b.Exec(t.Context(), "ip", "-br", "link"))(t)) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		names = append(names, name)
	}
	return names
}

// connect puts eth0 of both boxes on one wire, each with a high index, as Docker leaves it.
func connect(t *testing.T, a, b *box, addrA, addrB string) {
	t.Helper()
	for _, step := range [][]string{
		{"ip", "link", "add", "eth0", "index", "2347", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(b.pid)},
		{"ip", "address", "add", addrA, "dev", "eth0"}, {"ip", "link", "set", "eth0", "up"},
	} {
		must.Get(a.Exec(t.Context(), step...))(t)
	}
	for _, step := range [][]string{{"ip", "address", "add", addrB, "dev", "eth0"}, {"ip", "link", "set", "eth0", "up"}} {
		must.Get(b.Exec(t.Context(), step...))(t)
	}
}

var card = NIC{Node: "node1", Name: "eth1", Address: netip.MustParsePrefix("192.168.77.5/24")}

// plugInto plugs the card into node1, one of these machines.
func plugInto(machines ...*box) framework.Fault {
	var names []string
	byName := map[string]machine{}
	for _, m := range machines {
		names, byName[m.Name()] = append(names, m.Name()), m
	}
	return plugNIC(card, func(_ *framework.Run, node string) machine { return byName[node] }, func(*framework.Run) []string { return names })
}

func TestPlugNIC(t *testing.T) {
	node, other := newBox(t, "node1"), newBox(t, "node2")
	connect(t, node, other, "172.29.0.11/24", "172.29.0.12/24")
	f := plugInto(node, other)
	before := node.interfaces(t)
	if effect, saw, err := f.TookEffect(t.Context(), nil); effect || err != nil || saw != "node1 has no interface eth1" {
		t.Errorf("before: %v, %q, %v", effect, saw, err)
	}
	for range 2 { // and once more after the undo
		must.NoError(t, f.Inject(t.Context(), nil))
		if effect, saw, err := f.TookEffect(t.Context(), nil); !effect || err != nil { // at once
			t.Fatalf("not held: %q, %v", saw, err)
		}
		if now := node.interfaces(t); !slices.Equal(now, append(slices.Clone(before), "eth1")) {
			t.Errorf("interfaces are %v, want eth1 last after %v: autodetection would not take it", now, before)
		}
		if got := other.interfaces(t); slices.Contains(got, farEnd) {
			t.Errorf("the other node has the wire: %v", got)
		}
		for range 2 { // the second time there is nothing to do
			must.NoError(t, f.Undo(t.Context(), nil))
		}
		if now := node.interfaces(t); !slices.Equal(now, before) {
			t.Errorf("interfaces after undo are %v, want %v", now, before)
		}
		must.Equal(t, "namespaces after undo", "", must.Get(node.Exec(t.Context(), "ip", "netns", "list"))(t))
	}
}

// An interface that the node already has is neither replaced nor removed by the undo.
func TestPlugNICThatIsThere(t *testing.T) {
	node := newBox(t, "node1")
	must.Get(node.Exec(t.Context(), "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "mine"))(t)
	f := plugInto(node)
	must.Fail(t, f.Inject(t.Context(), nil), "plugging eth1 into node1: the node has an interface eth1")
	must.NoError(t, f.Undo(t.Context(), nil))
	if now := node.interfaces(t); !slices.Contains(now, "eth1") {
		t.Errorf("undo took what was not ours: %v", now)
	}
}

// Held reports an address that another node reaches over its own routes, even if the topology has no such
// network.
func TestPlugNICThatIsReached(t *testing.T) {
	node, other := newBox(t, "node1"), newBox(t, "node2")
	connect(t, node, other, "172.29.0.11/24", "172.29.0.12/24")
	must.Get(other.Exec(t.Context(), "ip", "route", "add", "192.168.77.0/24", "via", "172.29.0.11"))(t)
	f := plugInto(node, other)
	must.NoError(t, f.Inject(t.Context(), nil))
	effect, saw, err := f.TookEffect(t.Context(), nil)
	if effect || err != nil || saw != "node2 reaches 192.168.77.5 of node1, so the incident would not occur" {
		t.Errorf("held: %q, %v", saw, err)
	}
}
