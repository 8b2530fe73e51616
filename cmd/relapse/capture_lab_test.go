//go:build lab

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/must"
	"github.com/relapse-dev/relapse/topology/rtnl"
)

// labRanges are the addresses of node-drain's labs: their networks and their pods.
var labRanges = []netip.Prefix{
	netip.MustParsePrefix("10.4.94.0/24"),
	netip.MustParsePrefix("10.4.36.0/24"),
	netip.MustParsePrefix("10.5.112.0/21"),
	netip.MustParsePrefix("10.208.0.0/20"),
}

// capture records the packets with an address of the lab that cross an uplink of this machine. Loopback, bridge and
// veth interfaces are no uplinks: no packet leaves the machine by them alone.
type capture struct {
	sockets map[string]int // by uplink

	mu     sync.Mutex
	found  []string
	failed error
}

func startCapture(t *testing.T) *capture {
	t.Helper()
	links := must.Get(rtnl.Dump(t.Context(), netlink.LinkList))(t)
	c := &capture{sockets: map[string]int{}}
	done := make(chan struct{})
	var ended sync.WaitGroup
	t.Cleanup(func() {
		close(done)
		ended.Wait()
		for _, socket := range c.sockets {
			unix.Close(socket)
		}
	})
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback != 0 || link.Type() == "bridge" || link.Type() == "veth" {
			continue
		}
		name := link.Attrs().Name
		socket, err := packetSocket(link.Attrs().Index)
		if err != nil {
			t.Fatalf("looking at %s: %v", name, err)
		}
		c.sockets[name] = socket
		ended.Go(func() { c.read(name, socket, done) })
	}
	return c
}

// labsV6 is the IPv6 prefix of all labs.
var labsV6 = netip.MustParsePrefix("fd5c:3f1e::/32")

// ofLab filters packets with an address of the lab in the kernel: a reader would be too slow for a busy uplink.
func ofLab() []bpf.Instruction {
	const take, leave = 1 << 16, 0
	matches := func(offsets []uint32, ranges ...netip.Prefix) []bpf.Instruction {
		var program []bpf.Instruction
		for _, offset := range offsets {
			for _, p := range ranges {
				network, mask := p.Masked().Addr().AsSlice(), net.CIDRMask(p.Bits(), 32)
				program = append(program,
					bpf.LoadAbsolute{Off: offset, Size: 4},
					bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: binary.BigEndian.Uint32(mask)},
					bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(network), SkipTrue: 1},
					bpf.RetConstant{Val: take},
				)
			}
		}
		return append(program, bpf.RetConstant{Val: leave})
	}
	program := []bpf.Instruction{bpf.LoadExtension{Num: bpf.ExtProto}}
	for protocol, ranges := range map[uint16][]netip.Prefix{unix.ETH_P_IP: labRanges, unix.ETH_P_ARP: labRanges, unix.ETH_P_IPV6: {labsV6}} {
		one := matches(addressesAt[protocol], ranges...)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(protocol), SkipTrue: uint8(len(one))})
		program = append(program, one...)
	}
	return append(program, bpf.RetConstant{Val: leave})
}

// packetSocket receives the lab's packets on a link, from their network header on.
func packetSocket(link int) (int, error) {
	// Without a protocol it receives nothing until it is bound: no packet of another link gets in.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	filter, err := bpf.Assemble(ofLab())
	if err != nil {
		return 0, err
	}
	var program []unix.SockFilter
	for _, i := range filter {
		program = append(program, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	err = unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	if err == nil {
		// Reads have a timeout, so that the end of the capture is noticed.
		err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err == nil {
		err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: link})
	}
	if err != nil {
		unix.Close(socket)
		return 0, err
	}
	return socket, nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

func (c *capture) read(name string, socket int, done <-chan struct{}) {
	buffer := make([]byte, 128) // enough for headers
	for {
		select {
		case <-done:
			return
		default:
		}
		n, from, err := unix.Recvfrom(socket, buffer, 0)
		switch {
		case err == unix.EAGAIN, err == unix.EINTR, err == unix.ENETDOWN: // a link may be down at first
		case err != nil:
			c.mu.Lock()
			c.failed = fmt.Errorf("reading from %s: %w", name, err)
			c.mu.Unlock()
			return
		default:
			if link, ok := from.(*unix.SockaddrLinklayer); ok {
				c.look(name, bigEndian(link.Protocol), buffer[:n])
			}
		}
	}
}

func (c *capture) look(name string, protocol uint16, packet []byte) {
	var ends []string
	for _, at := range addressesAt[protocol] {
		end := netip.AddrFrom4([4]byte(packet[at : at+4]))
		if protocol == unix.ETH_P_IPV6 {
			end = netip.AddrFrom16([16]byte(packet[at : at+16]))
		}
		ends = append(ends, end.String())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, fmt.Sprintf("%s: %s (% x)", name, strings.Join(ends, " to "), packet))
}

// addressesAt are the offsets of a packet's addresses, by protocol: source and destination, or ARP's sender and target.
var addressesAt = map[uint16][]uint32{unix.ETH_P_IP: {12, 16}, unix.ETH_P_IPV6: {8, 24}, unix.ETH_P_ARP: {14, 24}}

func (c *capture) seen(t *testing.T) []string {
	t.Helper()
	for name, socket := range c.sockets {
		stats := must.Get(unix.GetsockoptTpacketStats(socket, unix.SOL_PACKET, unix.PACKET_STATISTICS))(t)
		must.Equal(t, "packets that went by unseen on "+name, 0, stats.Drops)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	must.NoError(t, c.failed)
	return slices.Clone(c.found)
}

func (c *capture) quiet(t *testing.T) {
	t.Helper()
	must.Equal(t, "packets on the uplinks with an address of the lab", nil, c.seen(t))
}

// strangers is TEST-NET-2, a range that is not routed anywhere (RFC 5737).
var strangers = netip.MustParsePrefix("198.51.100.0/24")

// fakeUplink makes a link that drops all packets, with a route to strangers. The link ends with the process.
func fakeUplink(t *testing.T) netlink.Link {
	t.Helper()
	link := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: "relapse-test"}, Mode: netlink.TUNTAP_MODE_TUN,
		Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1,
	}
	must.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() {
		for _, f := range link.Fds {
			f.Close()
		}
	})
	must.NoError(t, netlink.LinkSetUp(link))
	found := must.Get(netlink.LinkByName(link.Name))(t)
	route := &netlink.Route{LinkIndex: found.Attrs().Index, Dst: &net.IPNet{
		IP: strangers.Addr().AsSlice(), Mask: net.CIDRMask(strangers.Bits(), 32),
	}}
	must.NoError(t, netlink.RouteAdd(route))
	return found
}

// TestCaptureSees: a capture sees the packets from and to a lab's address on an uplink, and no other packets.
func TestCaptureSees(t *testing.T) {
	uplink := fakeUplink(t)
	c := startCapture(t)
	socket := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(socket)
	send := func(from, to string) {
		packet, protocol := make([]byte, 40), uint16(unix.ETH_P_IP)
		packet[0], packet[3], packet[8], packet[9] = 0x45, 20, 64, 253 // RFC 3692: for experiments
		source, target := netip.MustParseAddr(from), netip.MustParseAddr(to)
		if source.Is6() {
			protocol, packet = unix.ETH_P_IPV6, make([]byte, 40)
			packet[0], packet[6], packet[7] = 0x60, 253, 64
		}
		copy(packet[addressesAt[protocol][0]:], source.AsSlice())
		copy(packet[addressesAt[protocol][1]:], target.AsSlice())
		address := &unix.SockaddrLinklayer{Protocol: bigEndian(protocol), Ifindex: uplink.Attrs().Index}
		must.NoError(t, unix.Sendto(socket, packet, 0, address))
	}
	send("198.51.100.1", "198.51.100.2") // nobody's
	send("10.5.115.7", "198.51.100.2")   // from a pod
	send("198.51.100.1", "10.4.94.32")   // to a node
	send("10.4.95.32", "10.5.120.1")     // the next network, and the next range
	send("10.4.36.10", "10.5.119.255")
	send("2001:db8::1", "2001:db8::2") // nobody's
	send("fd5c:3f1e:a2d7::a42:415", "2001:db8::2")
	want := []string{
		"10.5.115.7 to 198.51.100.2", "198.51.100.1 to 10.4.94.32", "10.4.36.10 to 10.5.119.255", "fd5c:3f1e:a2d7::a42:415 to 2001:db8::2",
	}
	var found []string
	eventually(t, "the lab's packets to be seen", 5*time.Second, func() (bool, string) {
		found = c.seen(t)
		return len(found) >= len(want), fmt.Sprintf("%q", found)
	})
	for i, w := range want {
		if len(found) != len(want) || !strings.HasPrefix(found[i], "relapse-test: "+w+" ") {
			t.Fatalf("found %q, want %q", found, want)
		}
	}
}

// listeners are the TCP sockets of this machine that listen on an address that is not loopback.
func listeners(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets := must.Get(rtnl.Dump(t.Context(), func() ([]*netlink.Socket, error) { return netlink.SocketDiagTCP(family) }))(t)
		for _, s := range sockets {
			if s.State == netlink.TCP_LISTEN && !s.ID.Source.IsLoopback() {
				all = append(all, net.JoinHostPort(s.ID.Source.String(), strconv.Itoa(int(s.ID.SourcePort))))
			}
		}
	}
	slices.Sort(all)
	return all
}

// TestListenersSees: listeners has a socket on another address, and no socket on loopback.
func TestListenersSees(t *testing.T) {
	before := listeners(t)
	for addr, want := range map[string]int{"127.0.0.1:0": 0, "[::1]:0": 0, "127.0.0.2:0": 0, "0.0.0.0:0": 1} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			if strings.HasPrefix(addr, "[") {
				continue // no IPv6
			}
			t.Fatal(err)
		}
		must.Equal(t, addr, want, len(listeners(t))-len(before))
		must.NoError(t, l.Close())
	}
}
