package agent

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// connected is the socket of a probe whose packets are one flow. A connected socket is notified
// when a packet was refused (ICMP port unreachable): its next read or write fails.
type connected struct {
	agent   *Agent
	session *session
	probe   *sending
	conn    *net.UDPConn
	answers bool // a refusal is an answer

	// The agent's lock guards what follows: the last packet that was sent, and whether its
	// refusal is noted. The kernel does not say which packet was refused.
	last  wire.Packet
	noted bool
}

// connectedTo returns an attempt to have a packet echoed, over one socket for all of them.
// Echoes are read as long as the session lasts.
func (a *Agent) connectedTo(s *session, p *sending, probe wire.Probe) (func(slot uint32), error) {
	var from *net.UDPAddr
	if !a.addr.IsUnspecified() {
		from = &net.UDPAddr{IP: a.addr.AsSlice()}
	}
	conn, err := net.DialUDP(network("udp", probe.To.Addr()), from, net.UDPAddrFromAddrPort(probe.To))
	if err != nil {
		return nil, fmt.Errorf("connecting a socket: %w", err)
	}
	c := &connected{agent: a, session: s, probe: p, conn: conn, answers: probe.RefusalAnswers, noted: true}
	context.AfterFunc(s.ctx, func() { conn.Close() })
	s.workers.Go(c.read)
	return c.send, nil
}

func (c *connected) send(slot uint32) {
	b := make([]byte, wire.PacketSize)
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	packet := wire.Packet{Kind: wire.RequestPacket, Set: c.session.set, Probe: c.probe.id, Slot: slot, Sent: wire.Monotonic()}
	packet.Put(b)
	_, err := c.conn.Write(b)
	if errors.Is(err, unix.ECONNREFUSED) { // for the packet before; this one was not sent
		c.refused(err)
		_, err = c.conn.Write(b)
	}
	c.last, c.noted = packet, false
	if err != nil {
		c.refused(err)
	}
}

// refused notes why the last packet has no echo. The agent's lock is held.
func (c *connected) refused(err error) {
	if !c.noted {
		c.noted = true
		c.probe.noteRefusal(err, c.last.Slot, wire.Monotonic()-c.last.Sent, c.answers)
	}
}

func (c *connected) read() {
	// One byte more than a packet: a longer datagram is not a packet of a probe.
	b := make([]byte, wire.PacketSize+1)
	for {
		n, err := c.conn.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		now := wire.Monotonic()
		c.agent.mu.Lock()
		if err != nil {
			c.refused(err)
		} else if p, err := wire.ParsePacket(b[:n]); err == nil &&
			p.Kind == wire.ReplyPacket && p.Set == c.session.set && p.Probe == c.probe.id {
			c.probe.echoed(p, max(now-p.Sent, 0))
		}
		c.agent.mu.Unlock()
	}
}
