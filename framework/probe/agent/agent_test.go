package agent

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/must"
)

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
