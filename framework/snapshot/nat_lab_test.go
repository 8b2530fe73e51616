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

	"github.com/vishvananda/netns"
)

// TestContainerNAT reads the rules, flows and sockets of a process in a
// network namespace of its own, as of a node's.
func TestContainerNAT(t *testing.T) {
	node := exec.Command("sleep", "60")
	node.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Process.Kill(); _ = node.Wait() })
	pid := func(context.Context) (int, error) { return node.Process.Pid, nil }
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

	reader := ContainerNAT{PID: pid}
	rules, err := reader.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hides := slices.IndexFunc(rules, func(r NATRule) bool { return r.Comment == "hides the pods" })
	if hides < 0 || rules[hides].Source.Range.String() != "10.20.30.32/27" || rules[hides].To.String() != "10.20.28.12" {
		t.Errorf("rules %+v", rules)
	}

	flows, err := reader.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
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

	sockets, err := NetnsSockets(func(context.Context) (string, error) { return path, nil })(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (Socket{Local: netip.MustParseAddrPort("10.20.29.10:3306"), Remote: from(conn)}); !slices.Contains(sockets, want) {
		t.Errorf("%v is not among %v", want, sockets)
	}
}
