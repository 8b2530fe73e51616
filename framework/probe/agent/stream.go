package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// stream is the connection of a probe that keeps one open.
type stream struct {
	agent   *Agent
	session *session
	probe   *sending
	to      netip.AddrPort
	dialer  net.Dialer

	mu   sync.Mutex
	conn net.Conn // nil while there is none
	// dialing is set while a slot connects, and over once no slot may connect any more.
	dialing, over bool
}

func (a *Agent) newStream(s *session, p *sending, to netip.AddrPort, timeout time.Duration) *stream {
	t := &stream{agent: a, session: s, probe: p, to: to, dialer: net.Dialer{Timeout: timeout, KeepAlive: -1, Control: givesUp}}
	if !a.addr.IsUnspecified() {
		t.dialer.LocalAddr = &net.TCPAddr{IP: a.addr.AsSlice()}
	}
	return t
}

// givesUp has the kernel end a connection whose other end is silent.
func givesUp(_, _ string, socket syscall.RawConn) error {
	var failed error
	err := socket.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(wire.StreamGivesUp.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// send writes a slot's packet to the connection, which it opens if there is none.
func (t *stream) send(slot uint32) {
	conn, err := t.connected()
	if err != nil {
		t.refused(err)
		return
	}
	t.agent.mu.Lock()
	set := t.session.set
	t.agent.mu.Unlock()
	b := make([]byte, wire.PacketSize)
	wire.Packet{Kind: wire.RequestPacket, Set: set, Probe: t.probe.id, Slot: slot, Sent: wire.Monotonic()}.Put(b)
	if _, err := conn.Write(b); err != nil {
		t.broke(conn, err)
	}
}

// errConnecting is why a packet is lost while an earlier slot still connects.
var errConnecting = errors.New("no connection")

func (t *stream) connected() (net.Conn, error) {
	t.mu.Lock()
	if t.conn != nil || t.dialing || t.over {
		defer t.mu.Unlock()
		if t.conn == nil {
			return nil, errConnecting
		}
		return t.conn, nil
	}
	t.dialing = true
	t.mu.Unlock()
	conn, err := t.dialer.DialContext(t.session.ctx, network("tcp", t.to.Addr()), t.to.String())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialing = false
	if err != nil {
		return nil, err
	}
	if t.over {
		conn.Close()
		return nil, errConnecting
	}
	t.conn = conn
	t.session.workers.Go(func() { t.read(conn) })
	return conn, nil
}

func (t *stream) read(conn net.Conn) {
	defer context.AfterFunc(t.session.ctx, t.close)()
	b := make([]byte, wire.PacketSize)
	for {
		_, err := io.ReadFull(conn, b)
		now := wire.Monotonic()
		var p wire.Packet
		if err == nil {
			p, err = wire.ParsePacket(b)
		}
		if err != nil {
			t.broke(conn, err)
			return
		}
		t.agent.mu.Lock()
		if p.Kind == wire.ReplyPacket && p.Set == t.session.set && p.Probe == t.probe.id {
			t.probe.echoed(p, max(now-p.Sent, 0))
		}
		t.agent.mu.Unlock()
	}
}

// broke notes that a connection has broken. The reader and the writer may both call it: the first counts.
func (t *stream) broke(conn net.Conn, why error) {
	conn.Close()
	t.mu.Lock()
	ours := t.conn == conn && !t.over
	if t.conn == conn {
		t.conn = nil
	}
	t.mu.Unlock()
	if !ours {
		return
	}
	t.agent.mu.Lock()
	t.probe.broken.Add(uint32(max(0, wire.Monotonic()-t.probe.epoch) / t.probe.interval))
	t.agent.mu.Unlock()
	t.refused(why)
}

func (t *stream) refused(why error) {
	reason := why.Error()
	if errno := syscall.Errno(0); errors.As(why, &errno) {
		reason = unix.ErrnoName(errno)
	} else if timeout := net.Error(nil); errors.As(why, &timeout) && timeout.Timeout() {
		reason = "no connection" // as while another slot connects
	} else if errors.Is(why, io.EOF) || errors.Is(why, io.ErrUnexpectedEOF) {
		reason = "closed by the far end"
	}
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	t.probe.refused(reason)
}

// close ends the connection for good, which breaks nothing.
func (t *stream) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.conn != nil {
		t.conn.Close()
	}
}

// idleWithin bounds how long a connection may say nothing: a prober that vanished
// says no goodbye. It is longer than wire.StreamGivesUp.
const idleWithin = time.Minute

// echoStream sends the packets of a stream back. Of other connections it takes what
// comes, until the other end closes them.
func (a *Agent) echoStream(conn net.Conn) {
	source := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	b := make([]byte, wire.PacketSize)
	for {
		_ = conn.SetDeadline(time.Now().Add(idleWithin))
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		p, err := wire.ParsePacket(b)
		if err != nil || p.Kind != wire.RequestPacket {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		a.mu.Lock()
		p.Server = a.seen(p, source, 0)
		a.mu.Unlock()
		p.Kind = wire.ReplyPacket
		p.Put(b)
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}
