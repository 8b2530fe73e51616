//go:build lab

package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// ownReader is set in the process that reads its own network namespace.
const ownReader = "RELAPSE_TEST_OWN"

// TestOwnReader is not a test of its own: TestOwnChangesNothing runs it in other namespaces.
func TestOwnReader(t *testing.T) {
	if os.Getenv(ownReader) == "" {
		return
	}
	c := open(t, fakeAccess{nodes: map[string]Machine{"node": Own{}}}, NodeNetworks, NodeTables, Firewalls, NAT, Proxies)
	c.Allow(proxyTimeout)
	must.NoError(t, os.WriteFile("/dev/fd/3", must.Get(json.Marshal(c.Collect(t.Context())))(t), 0))
}

type ownNode struct {
	t   *testing.T
	pid int
}

func newOwnNode(t *testing.T) ownNode {
	node := exec.Command("sleep", "60")
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	t.Cleanup(runtime.UnlockOSThread)
	must.NoError(t, node.Start())
	t.Cleanup(func() { _ = node.Process.Kill(); _ = node.Wait() })
	return ownNode{t, node.Process.Pid}
}

func (n ownNode) command(command ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(n.pid), "--net", "--"}
	return exec.CommandContext(n.t.Context(), "nsenter", append(enter, command...)...)
}

func (n ownNode) run(command ...string) string {
	n.t.Helper()
	said, err := n.command(command...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %v: %s", command, err, said)
	}
	return string(said)
}

// read reads the node as a pod of the audit's manifest does: in its network namespace, with two
// capabilities and no new ones, on a read-only file system.
func (n ownNode) read() Snapshot {
	n.t.Helper()
	answer, into, err := os.Pipe()
	must.NoError(n.t, err)
	defer answer.Close()
	cmd := n.command("unshare", "--mount", "sh", "-c", `mount -o remount,bind,ro / && exec "$@"`, "sh",
		"setpriv", "--no-new-privs", "--bounding-set", "-all,+net_admin,+net_raw", "--", os.Args[0], "-test.run", "^TestOwnReader$")
	cmd.Env = append(os.Environ(), ownReader+"=1")
	cmd.ExtraFiles = []*os.File{into}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	must.NoError(n.t, cmd.Start())
	into.Close()
	var s Snapshot
	err = json.NewDecoder(answer).Decode(&s)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		n.t.Fatalf("%v: %s", err, &said)
	}
	return s
}

// state is what reading could change: nftables, legacy tables, modules and settings.
func (n ownNode) state() map[string]string {
	n.t.Helper()
	ns := must.Get(netns.GetFromPid(n.pid))(n.t)
	defer ns.Close()
	conn := must.Get(nftables.New(nftables.WithNetNSFd(int(ns))))(n.t)
	state := map[string]string{}
	for _, table := range must.Get(conn.ListTables())(n.t) {
		state[fmt.Sprintf("table %d %s", table.Family, table.Name)] = "there"
	}
	for _, c := range must.Get(conn.ListChains())(n.t) {
		rules := must.Get(conn.GetRules(c.Table, c))(n.t)
		state[fmt.Sprintf("chain %d %s %s", c.Table.Family, c.Table.Name, c.Name)] = fmt.Sprintf("%d rules", len(rules))
	}
	for _, file := range []string{"net/ip_tables_names", "net/ip6_tables_names", "net/arp_tables_names"} {
		state[file] = n.run("sh", "-c", "cat /proc/"+file+" 2>&1 || true")
	}
	modules, err := os.ReadFile("/proc/modules")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(modules)) { // without their numbers of users
		name, _, _ := strings.Cut(line, " ")
		state["module "+name] = "there"
	}
	// What the kernel counts is no setting.
	state["sysctl"] = n.run("sh", "-c", "find /proc/sys/net -type f ! -name nf_conntrack_count | sort | xargs grep -H '' 2>&1 || true")
	return state
}

// Reading a node creates no table, loads no module, and changes no setting: on one that has nothing,
// where iptables-save would make a table, and on one that has rules of both kinds and a connection.
func TestOwnChangesNothing(t *testing.T) {
	n := newOwnNode(t)
	before := n.state()
	s := n.read()
	must.Equal(t, "reading a node that has nothing changed it", before, n.state())
	must.Equal(t, "unread", "", Sentences(s.Unavailable()))
	if len(s.NAT) != 1 || len(s.NAT[0].Rules.Items)+len(s.NAT[0].Flows.Items)+len(s.Firewalls[0].Rules.Items) > 0 || len(s.NodeNetworks[0].Interfaces.Items) == 0 {
		t.Errorf("%+v", s)
	}
	// The comparison sees what the look beforehand prevents.
	n.run("iptables-nft-save", "--table", "nat")
	n.run("iptables-legacy-save", "--table", "nat")
	named := n.state()
	if named["table 2 nat"] != "there" && !strings.Contains(named["net/ip_tables_names"], "nat") {
		t.Errorf("to name a table makes none any more: %v", named)
	}

	for _, command := range []string{
		"ip link set lo up",
		"ip address add 10.20.30.35/32 dev lo",
		"ip address add 10.20.29.10/32 dev lo",
		"iptables-nft -t nat -A POSTROUTING -p udp -s 10.20.30.32/27 -j SNAT --to-source 10.20.30.35",
		"iptables-legacy -t nat -A POSTROUTING -s 10.20.31.0/24 -m comment --comment legacy -j MASQUERADE",
		"iptables-nft -A FORWARD -d 10.20.65.3 -j REJECT",
		"iptables-legacy -A FORWARD -d 10.20.65.4 -j DROP",
		"bash -c echo>/dev/udp/10.20.29.10/7007",
	} {
		n.run(strings.Fields(command)...)
	}
	before = n.state()
	s = n.read()
	must.Equal(t, "reading a node that has rules changed it", before, n.state())
	must.Equal(t, "unread", "", Sentences(s.Unavailable()))
	rules := each.Of(slices.Concat(s.NAT[0].Rules.Items, s.Firewalls[0].Rules.Items), func(r Rule) string { return r.Text })
	must.Equal(t, "rules", []string{
		"-A POSTROUTING -s 10.20.30.32/27 -p udp -j SNAT --to-source 10.20.30.35",
		"-A POSTROUTING -s 10.20.31.0/24 -m comment --comment legacy -j MASQUERADE",
		"-A FORWARD -d 10.20.65.3/32 -j REJECT --reject-with icmp-port-unreachable",
		"-A FORWARD -d 10.20.65.4/32 -j DROP",
	}, rules)
	if !slices.ContainsFunc(s.NAT[0].Flows.Items, func(f Flow) bool { return f.Protocol == "udp" && f.Destination.Port() == 7007 }) {
		t.Errorf("flows: %+v", s.NAT[0].Flows)
	}
}

// A kube-proxy that hangs keeps no process of the reader's alive.
func TestOwnEndsWhatItRuns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), proxyTimeout/15)
	defer cancel()
	must.Fail(t, must.Err((Own{}).Exec(ctx, "bash", "-c", "sleep 67 & cat <(sleep 67)")))
	if out, err := exec.CommandContext(t.Context(), "pgrep", "-f", "^sleep 67$").CombinedOutput(); err == nil {
		t.Errorf("still there: %s", out)
	}
}
