//go:build lab

package snapshot

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestNAT reads the rules, flows and sockets of a process in a
// network namespace of its own, as of a node's.
func TestNAT(t *testing.T) {
	node := exec.Command("sleep", "60")
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Process.Kill(); _ = node.Wait() })
	path := fmt.Sprintf("/proc/%d/ns/net", node.Process.Pid)
	enter := []string{"nsenter", "--target", strconv.Itoa(node.Process.Pid), "--net", "--"}
	for _, command := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "address", "add", "10.20.30.35/32", "dev", "lo"},
		{"ip", "address", "add", "10.20.29.10/32", "dev", "lo"},
		{"iptables", "-t", "nat", "-A", "POSTROUTING", "-p", "udp", "-s", "10.20.30.32/27", "-m", "comment", "--comment", "hides the pods", "-j", "SNAT", "--to-source", "10.20.28.12"},
	} {
		command = append(slices.Clone(enter), command...)
		if said, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, said)
		}
	}
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	there, err := netns.GetFromPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		t.Fatal(err)
	}
	server, err := net.Listen("tcp4", "10.20.29.10:3306")
	var conn net.Conn
	if err == nil {
		conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("tcp4", "10.20.29.10:3306")
	}
	var packets net.Conn
	if err == nil {
		packets, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 20, 30, 35)}}).Dial("udp4", "10.20.29.10:7007")
	}
	if err := netns.Set(own); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	defer conn.Close()
	defer packets.Close()
	if _, err := packets.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}

	machine := fakeMachine{pid: node.Process.Pid, netns: func(context.Context) (string, error) { return path, nil }}
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

	sockets, err := socketsOf(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Socket{Local: netip.MustParseAddrPort("10.20.29.10:3306"), Remote: from(conn)}); !slices.Contains(sockets, want) {
		t.Errorf("%v is not among %v", want, sockets)
	}

	if programs := got.Programs.Items; len(programs) != 0 {
		t.Errorf("programs %+v, where there are none", programs)
	}
	attach(t, there, "lo", "bpf_host.o:[to-netdev]")
	if programs := read(t.Context()).Programs; !programs.Read || !slices.Equal(programs.Items, []Program{{Device: "lo", Name: "bpf_host.o:[to-netdev]"}}) {
		t.Errorf("programs %+v", programs)
	}
}

// attach puts a program that does nothing on both ways of a device.
func attach(t *testing.T, there netns.NsHandle, device, name string) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TC_ACT_UNSPEC
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	h, err := netlink.NewHandleAt(there, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	index := link.Attrs().Index
	if err := h.QdiscAdd(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact",
	}); err != nil {
		t.Fatal(err)
	}
	for parent, name := range map[uint32]string{netlink.HANDLE_MIN_EGRESS: name, netlink.HANDLE_MIN_INGRESS: "of the way in"} {
		if err := h.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          program.FD(), Name: name, DirectAction: true,
		}); err != nil {
			t.Fatal(err)
		}
	}
}
