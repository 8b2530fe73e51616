package agent

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

// TestBatch sends three packets, of which the kernel refuses the second (port 0), and reads what comes
// with the others.
func TestBatch(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) { sendsBatch(t, netip.MustParseAddr("127.0.3.7"), netip.IPv4Unspecified()) })
	t.Run("IPv6", func(t *testing.T) { sendsBatch(t, netip.IPv6Loopback(), netip.IPv6Unspecified()) })
}

func sendsBatch(t *testing.T, local, unspecified netip.Addr) {
	a, err := openSocket(netip.AddrPortFrom(local, 0))
	if local.Is6() && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL)) {
		t.Skip("this machine has no IPv6")
	}
	must.NoError(t, err)
	defer unix.Close(a)
	b := must.Get(openSocket(netip.AddrPortFrom(unspecified, 0)))(t)
	defer unix.Close(b)
	out, received := newBatch(), newBatch()
	var open uint16
	switch bound := must.Get(unix.Getsockname(b))(t).(type) {
	case *unix.SockaddrInet4:
		open = uint16(bound.Port)
	case *unix.SockaddrInet6:
		open = uint16(bound.Port)
	}
	for i, port := range []uint16{open, 0, open} {
		out.put(i, wire.Packet{Kind: wire.RequestPacket, Slot: uint32(i)}, sockaddr(netip.AddrPortFrom(local, port)))
	}
	refused := map[int]unix.Errno{}
	out.send(a, 3, func(i int, errno unix.Errno) { refused[i] = errno })
	must.Equal(t, "refused", map[int]unix.Errno{1: unix.EINVAL}, refused)
	var got []uint32
	n, errno := received.receive(b)
	must.Equal(t, "receiving", 0, errno)
	for i := range n {
		p := must.Get(received.packet(i))(t)
		got = append(got, p.Slot)
		if meta := received.ancillary(i); meta.ttl != 64 || meta.local != local || received.source(i) != local {
			t.Errorf("packet %d: %+v from %s", p.Slot, meta, received.source(i))
		}
	}
	must.Equal(t, "arrived", []uint32{0, 2}, got)
}

// TestReceiveBuffer: a socket holds what arrives while its agent does not run, as far as
// this kernel allows it.
func TestReceiveBuffer(t *testing.T) {
	allowed := must.Get(strconv.Atoi(strings.TrimSpace(string(must.Read(t, "/proc/sys/net/core/rmem_max")))))(t)
	fd := must.Get(openSocket(netip.MustParseAddrPort("127.0.0.1:0")))(t)
	defer unix.Close(fd)
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if want := 2 * min(receiveBuffer, allowed); err != nil || got < want { // the kernel doubles it, for what it needs itself (socket(7))
		t.Errorf("the receive buffer has %d bytes, %v; want %d", got, err, want)
	}
}

// TestTake: a sender that wakes up late leaves out the slots that are past.
func TestTake(t *testing.T) {
	p := &sending{epoch: 1000, interval: 10}
	for _, now := range []int64{1000, 1010, 1019 + 20, 1040} {
		p.take(now)
	}
	must.Equal(t, "sent", wire.Runs{{0, 1}, {3, 4}}, p.sent)
	must.Equal(t, "next due", 1050, p.due())
}

// TestNoAllocations: a full round of sending, answering and reading the
// answers costs no memory per packet.
func TestNoAllocations(t *testing.T) {
	address := netip.MustParseAddrPort("127.0.3.8:7007")
	a := must.Get(Open(address, false))(t)
	defer a.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &session{set: 1, probes: map[uint32]*sending{}, seen: map[seenKey]*receiving{}, reports: make(chan wire.Message, 1)}
	a.sessions[s] = struct{}{}
	const probes = 50
	for id := range uint32(probes) {
		s.probes[id] = &sending{id: id, kind: wire.UDP, to: sockaddr(address), epoch: wire.Monotonic(), interval: 1, quit: func() {}}
		s.probes[id].rtt = make([]uint32, 0, 1<<16)
	}
	allocs := testing.AllocsPerRun(50, func() {
		a.send()
		a.drain(wire.Monotonic())
		for _, p := range s.probes {
			p.sent, p.answers, p.rtt = p.sent[:0], p.answers[:0], p.rtt[:0]
		}
	})
	if allocs > probes/5 {
		t.Errorf("%g allocations for a tick of %d packets", allocs, probes)
	}
	delete(a.sessions, s)
}

// TestPacketsThatWait: an agent that did not come to answer what had arrived
// says so, even if it ran for other things.
func TestPacketsThatWait(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.3.8:47811")
	a := must.Get(Open(at, false))(t)
	defer a.Close()
	s := &session{seen: map[seenKey]*receiving{}}
	a.mu.Lock()
	a.sessions[s] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.sessions, s)
		a.mu.Unlock()
	}()
	from := must.Get(openSocket(netip.AddrPortFrom(at.Addr(), 0)))(t)
	defer unix.Close(from)
	out := newBatch()
	ask := func() {
		out.put(0, wire.Packet{Kind: wire.RequestPacket}, sockaddr(at))
		out.send(from, 1, func(_ int, errno unix.Errno) { t.Fatal(errno) })
	}
	noted := func() [][2]int64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return s.still
	}
	ask()
	answered := newBatch()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, _ := answered.receive(from); n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no answer")
		}
	}
	must.Equal(t, "it stood still, though it has answered at once", nil, noted())
	// The first packet holds the answering up at the lock, the second waits.
	a.mu.Lock()
	ask()
	time.Sleep(50 * time.Millisecond)
	began := wire.Monotonic()
	ask()
	time.Sleep(2 * wire.Standstill)
	a.mu.Unlock()
	for deadline := time.Now().Add(10 * time.Second); len(noted()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not say that a packet has waited")
		}
	}
	if still := noted(); still[0][0] > began+int64(20*time.Millisecond) || still[0][1]-still[0][0] < int64(2*wire.Standstill) {
		t.Errorf("it stood still in %v, want from %d for %s at least", still, began, 2*wire.Standstill)
	}
}

// Flows to two destinations never have one source port, and no port comes again before all
// others of its destination were used: one destination may stand for the other.
func TestDestinationsShareNoSourcePort(t *testing.T) {
	far := must.Get(Open(netip.MustParseAddrPort("127.0.0.2:0"), false))(t)
	defer far.Close()
	agent := must.Get(Open(netip.MustParseAddrPort("0.0.0.0:0"), false))(t)
	defer agent.Close()
	to := map[string]netip.AddrPort{
		"tcp4": netip.MustParseAddrPort(far.families[0].connect.Addr().String()), "udp4": netip.MustParseAddrPort("127.0.0.3:7"),
	}
	networks := map[int]string{}
	for range 300 {
		for network, to := range to {
			conn := must.Get(agent.dial(t.Context(), network, to))(t)
			conn.Close()
			port := int(netip.MustParseAddrPort(conn.LocalAddr().String()).Port())
			must.Equal(t, network+" uses a port again, which was last used by", "", networks[port])
			networks[port] = network
		}
	}
}
