package snapshot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func proc(t *testing.T, files map[string]string) Own {
	t.Helper()
	o := Own{Proc: t.TempDir()}
	for name, text := range files {
		must.Write(t, filepath.Join(o.Proc, name), text)
	}
	return o
}

// kallsyms lists functions as the kernel does, each at address 0.
func kallsyms(functions ...string) string {
	return "0000000000000000 T vfs_read\n" + each.Joined(functions, "", func(f string) string { return "0000000000000000 t " + f + "\n" })
}

// A kernel is asked for connections and rules only if no module has to be loaded for that.
func TestOwnLooksFirst(t *testing.T) {
	connections := func(o Own) (bool, error) { return o.tracks() }
	rules := func(program string) func(Own) (bool, error) {
		return func(o Own) (bool, error) { return o.saves(program, NATTable) }
	}
	const count = "sys/net/netfilter/nf_conntrack_count"
	const names = "net/ip_tables_names"
	for name, test := range map[string]struct {
		files map[string]string
		asks  func(Own) (bool, error)
		want  bool
		err   string
	}{
		"no kallsyms":              {nil, connections, false, "looking whether a question would load a module: open "},
		"an empty kallsyms":        {map[string]string{"kallsyms": ""}, connections, false, "/proc/kallsyms is empty"},
		"no connection tracking":   {map[string]string{"kallsyms": kallsyms()}, connections, false, ""},
		"connections":              {map[string]string{"kallsyms": kallsyms("nf_conntrack_in\t[nf_conntrack]", "ctnetlink_get_conntrack\t[nf_conntrack_netlink]"), count: "7\n"}, connections, true, ""},
		"of a compiler's variant":  {map[string]string{"kallsyms": kallsyms("nf_conntrack_in.cold", "ctnetlink_get_conntrack.llvm.123"), count: "7\n"}, connections, true, ""},
		"a function of that start": {map[string]string{"kallsyms": kallsyms("nf_conntrack_init")}, connections, false, ""},
		"nf_conntrack_netlink is not loaded": {map[string]string{"kallsyms": kallsyms("nf_conntrack_in"), count: "7\n"}, connections, false,
			"to ask for them would load nf_conntrack_netlink"},
		"too many connections": {map[string]string{"kallsyms": kallsyms("nf_conntrack_in", "ctnetlink_get_conntrack"), count: "200001\n"}, connections, false,
			"200001 connections are tracked, and 200000 are read at most"},
		"connections not counted":     {map[string]string{"kallsyms": kallsyms("nf_conntrack_in", "ctnetlink_get_conntrack")}, connections, false, "counting connections: "},
		"no nf_tables":                {map[string]string{"kallsyms": kallsyms()}, rules(nftSave), false, ""},
		"rules of nft":                {map[string]string{"kallsyms": kallsyms("nf_tables_getrule", "nfnl_compat_get_rcu")}, rules(nftSave), true, ""},
		"of an older kernel":          {map[string]string{"kallsyms": kallsyms("nf_tables_getrule", "nfnl_compat_get")}, rules(nftSave), true, ""},
		"nft_compat is not loaded":    {map[string]string{"kallsyms": kallsyms("nf_tables_getrule")}, rules(nftSave), false, "iptables-nft-save would load nft_compat"},
		"legacy iptables is not used": {map[string]string{}, rules(legacySave), false, ""},
		"no such legacy table":        {map[string]string{names: "filter\nmangle\n"}, rules(legacySave), false, ""},
		"a legacy table":              {map[string]string{names: "filter\nnat\n"}, rules(legacySave), true, ""},
	} {
		got, err := test.asks(proc(t, test.files))
		must.Equal(t, name, test.want, got)
		fails(t, err, test.err)
	}
}

// A BIRD that listens where this program does not see its socket is unread, and not absent.
func TestOwnBIRD(t *testing.T) {
	const header = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	socket := header + "0000000000000000: 00000002 00000000 00010000 0001 01 18134 /var/run/calico/bird.ctl\n"
	if _, err := os.Stat(birdSocket); err == nil {
		t.Fatalf("this machine has %s", birdSocket)
	}
	for name, test := range map[string]struct {
		files map[string]string
		err   string
	}{
		"none":              {map[string]string{"net/unix": header}, ""},
		"it is not mounted": {map[string]string{"net/unix": socket}, "BIRD listens, but " + birdSocket + " is not mounted here"},
		"not known":         {nil, "no such file"},
	} {
		protocols, err := birdOf(t.Context(), proc(t, test.files))
		must.Equal(t, name, 0, len(protocols))
		fails(t, err, test.err)
	}
}

// What the kernel has no part for is read, and empty; the rest of this machine is reached without privileges.
func TestOwn(t *testing.T) {
	o := proc(t, map[string]string{"kallsyms": kallsyms(), "net/unix": "\n"})
	nat := natReader("a", o)(t.Context())
	if !nat.Rules.Read || !nat.Flows.Read || len(nat.Rules.Items)+len(nat.Flows.Items) > 0 {
		t.Errorf("%+v", nat)
	}
	if f := firewallReader("a", o)(t.Context()); !f.Rules.Read || len(f.Rules.Items) > 0 {
		t.Errorf("%+v", f)
	}
	network := networkReader("a", o)(t.Context())
	for _, i := range must.Get(net.Interfaces())(t) {
		must.Equal(t, i.Name, true, slices.ContainsFunc(network.Interfaces.Items, func(n Interface) bool { return n.Name == i.Name }))
	}
	must.Equal(t, network.BIRD.Error, true, network.BIRD.Read)
	must.Fail(t, must.Err(o.Exec(t.Context(), "sh", "-c", "exit 3")), "running sh: exit status 3")
}

// A node that is read elsewhere is one request's answer, or unread with its reason.
func TestRemote(t *testing.T) {
	refused := errors.New("it refuses")
	answer := func(names ...string) Remote {
		return Remote{Read: func(context.Context) (Snapshot, error) {
			var s Snapshot
			for _, name := range names {
				s.NodeTables = append(s.NodeTables, NodeTable{Node: name, Routes: List[Route]{Read: true, Items: make([]Route, 3)}})
			}
			return s, nil
		}}
	}
	for name, test := range map[string]struct {
		node Remote
		want string
	}{
		"read":         {answer("a"), ""},
		"another node": {answer("b"), "the program on it has not answered with routes of the nodes of this node"},
		"two":          {answer("a", "a"), "the program on it has not answered with routes of the nodes of this node"},
		"none":         {answer(), "the program on it has not answered with routes of the nodes of this node"},
		"refused":      {Remote{Read: func(context.Context) (Snapshot, error) { return Snapshot{}, refused }}, "it refuses"},
	} {
		s := open(t, fakeAccess{nodes: map[string]Machine{"a": test.node}}, NodeTables).Collect(t.Context())
		if len(s.NodeTables) != 1 || s.NodeTables[0].Node != "a" {
			t.Fatalf("%s: %+v", name, s.NodeTables)
		}
		l := s.NodeTables[0].Routes
		if l.Read != (test.want == "") || !strings.Contains(l.Error, test.want) || l.Read != (len(l.Items) == 3) {
			t.Errorf("%s: %+v, want %q", name, l, test.want)
		}
	}
	m := Machine(Remote{})
	_, exec := m.Exec(t.Context(), "true")
	_, pid := m.PID(t.Context())
	_, ns := m.Netns(t.Context())
	_, path := m.Path(t.Context(), "/")
	must.Equal(t, "", strings.TrimSpace(strings.Repeat("it is not reached from here ", 4)), fmt.Sprint(exec, pid, ns, path))
}
