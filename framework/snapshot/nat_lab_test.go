//go:build lab

package snapshot

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestNAT(t *testing.T) {
	node := newOwnNode(t)
	path := fmt.Sprintf("/proc/%d/ns/net", node.pid)
	node.run("ip", "link", "set", "lo", "up")
	node.run("ip", "address", "add", "10.20.30.35/32", "dev", "lo")
	node.run("ip", "address", "add", "10.20.29.10/32", "dev", "lo")
	node.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-p", "udp", "-s", "10.20.30.32/27", "-m", "comment", "--comment", "hides the pods", "-j", "SNAT", "--to-source", "10.20.28.12")
	own := must.Get(netns.Get())(t)
	defer own.Close()
	there := must.Get(netns.GetFromPath(path))(t)
	defer there.Close()
	must.NoError(t, netns.Set(there))
	server, err := net.Listen("tcp4", "10.20.29.10:3306")
	var conn net.Conn
	if err == nil {
		conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("tcp4", "10.20.29.10:3306")
	}
	var packets net.Conn
	if err == nil {
		packets, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("udp4", "10.20.29.10:7007")
	}
	must.NoError(t, netns.Set(own))
	must.NoError(t, err)
	defer server.Close()
	defer conn.Close()
	defer packets.Close()
	must.Get(packets.Write([]byte("hello")))(t)

	machine := fakeMachine{pid: node.pid, netns: func(context.Context) (string, error) { return path, nil }}
	read := natReader("node", machine)
	got := read(t.Context())
	for _, p := range got.parts() {
		if !p.read {
			t.Errorf("%s: %s", p.what, p.why)
		}
	}
	rules, flows := got.Rules.Items, got.Flows.Items
	hides := slices.IndexFunc(rules, func(r Rule) bool { return r.Comment == "hides the pods" })
	if hides < 0 || rules[hides].Source.Range.String() != "10.20.30.32/27" || rules[hides].To.String() != "10.20.28.12" {
		t.Errorf("rules %+v", rules)
	}

	from := func(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
	tcp := slices.IndexFunc(flows, func(f Flow) bool { return f.Protocol == "tcp" && f.Source == from(conn) })
	if tcp < 0 || flows[tcp].Translated() || !flows[tcp].Established || flows[tcp].Destination.String() != "10.20.29.10:3306" {
		t.Errorf("the TCP flow from %s is not there as it is: %+v", from(conn), flows)
	}
	udp := slices.IndexFunc(flows, func(f Flow) bool { return f.Protocol == "udp" && f.Source == from(packets) })
	if udp < 0 || !flows[udp].Translated() || flows[udp].SeenAs.Addr().String() != "10.20.28.12" || flows[udp].Expires <= 0 {
		t.Errorf("the UDP flow from %s is not there as it is: %+v", from(packets), flows)
	}

	sockets := must.Get(socketsOf(t.Context(), machine))(t)
	if want := (Socket{Local: netip.MustParseAddrPort("10.20.29.10:3306"), Remote: from(conn)}); !slices.Contains(sockets, want) {
		t.Errorf("%v is not among %v", want, sockets)
	}

	must.Equal(t, "programs", 0, len(got.Programs.Items))
	attach(t, there, "lo", "bpf_host.o:[to-netdev]")
	if programs := read(t.Context()).Programs; !programs.Read || !slices.Equal(programs.Items, []Program{{Device: "lo", Name: "bpf_host.o:[to-netdev]"}}) {
		t.Errorf("programs %+v", programs)
	}
}

// attach puts a program that does nothing on both ways of a device.
func attach(t *testing.T, there netns.NsHandle, device, name string) {
	t.Helper()
	program := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TC_ACT_UNSPEC
	}))(t)
	defer program.Close()
	h := must.Get(netlink.NewHandleAt(there, unix.NETLINK_ROUTE))(t)
	defer h.Close()
	index := must.Get(h.LinkByName(device))(t).Attrs().Index
	must.NoError(t, h.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}))
	for parent, name := range map[uint32]string{netlink.HANDLE_MIN_EGRESS: name, netlink.HANDLE_MIN_INGRESS: "of the way in"} {
		must.NoError(t, h.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          program.FD(), Name: name, DirectAction: true,
		}))
	}
}
