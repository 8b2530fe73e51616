package probe_test

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// tcpRelay is between the two ends of a stream.
type tcpRelay struct {
	listener net.Listener
	target   netip.AddrPort

	mu    sync.Mutex
	conns []net.Conn
	holds chan struct{} // closed when what is held may go on; nil: nothing is held
}

func startTCPRelay(t *testing.T, target netip.AddrPort) *tcpRelay {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	r := &tcpRelay{listener: l, target: target}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp4", target.String())
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, client, out)
			r.mu.Unlock()
			all.Go(func() { r.copy(out, client) })
			all.Go(func() { r.copy(client, out) })
		}
	})
	t.Cleanup(func() { l.Close(); r.cut(); all.Wait() })
	return r
}

func (r *tcpRelay) copy(to, from net.Conn) {
	defer to.Close()
	b := make([]byte, 1024)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		r.mu.Lock()
		barrier := r.holds
		r.mu.Unlock()
		if barrier != nil {
			<-barrier
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *tcpRelay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

// hold keeps what comes from now on, until the function that it returns is called.
func (r *tcpRelay) hold() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	barrier := make(chan struct{})
	r.holds = barrier
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.holds = nil
		close(barrier)
	}
}

func (r *tcpRelay) end() probe.End {
	return probe.End{Name: "relay", Address: netip.MustParseAddrPort(r.listener.Addr().String())}
}

// A stream is one connection, and what breaks it is counted once.
func TestStream(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	relay := startTCPRelay(t, b.Address)
	s := start(t, []probe.End{a, b, relay.end()},
		probe.Probe{From: "a", To: "b", Protocol: probe.Stream, Interval: 10 * time.Millisecond},
		probe.Probe{From: "a", To: "relay", Protocol: probe.Stream, Interval: 10 * time.Millisecond})
	began := time.Now()
	waitClean(t, s, 200*time.Millisecond)
	for range 2 {
		relay.cut()
		waitClean(t, s, 200*time.Millisecond)
	}
	stop(t, s)
	line := timeline(t, s, "a->b/stream")
	if c := line.Counts(); c.Received < 20 || c.Lost != 0 || line.Broken(began, time.Now()) != 0 || len(line.Sources) != 1 {
		t.Errorf("%s; from %v", line.String(), line.Sources)
	}
	line = timeline(t, s, "a->relay/stream")
	if n := line.Broken(began, time.Now()); n != 2 || line.Broken(began, began) != 0 {
		t.Errorf("%d of two cuts are counted: %s", n, line.String())
	}
}

// What a connection holds back for longer than the Timeout is lost, and the connection
// is not broken.
func TestStreamThatStalls(t *testing.T) {
	t.Parallel()
	a, b := startEnd(t, "a"), startEnd(t, "b")
	relay := startTCPRelay(t, b.Address)
	s := start(t, []probe.End{a, b, relay.end()},
		probe.Probe{From: "a", To: "relay", Protocol: probe.Stream, Interval: 10 * time.Millisecond, Timeout: 300 * time.Millisecond})
	waitClean(t, s, 200*time.Millisecond)
	release := relay.hold()
	stall := time.Now()
	waitLoss(t, s, stall.Add(300*time.Millisecond))
	release()
	waitClean(t, s, 200*time.Millisecond)
	stop(t, s)
	line := timeline(t, s, "a->relay/stream")
	if c := line.Counts(); c.Lost == 0 || line.Broken(stall, time.Now()) != 0 {
		t.Error(line.String())
	}
}
