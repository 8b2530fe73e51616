package agent

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// flowTo returns an attempt to have one packet echoed that leaves from a new source port:
// connection tracking on the path has no entry for it.
func (a *Agent) flowTo(s *session, p *sending, probe wire.Probe) func(slot uint32) {
	return func(slot uint32) {
		a.mu.Lock()
		packet := wire.Packet{Kind: wire.RequestPacket, Set: s.set, Probe: p.id, Slot: slot, Sent: wire.Monotonic()}
		a.mu.Unlock()
		echo, err := a.echoOnce(s.ctx, probe.To, packet, probe.Timeout)
		rtt := wire.Monotonic() - packet.Sent
		a.mu.Lock()
		defer a.mu.Unlock()
		if err == nil {
			p.echoed(echo, rtt)
			return
		}
		p.noteRefusal(err, slot, rtt, probe.RefusalAnswers)
	}
}

// noteRefusal notes why a slot has no echo, if the kernel says so. With refusalAnswers a refusal
// by the far end is an answer.
func (p *sending) noteRefusal(err error, slot uint32, rtt int64, refusalAnswers bool) {
	errno := syscall.Errno(0)
	if !errors.As(err, &errno) {
		return
	}
	p.refused(unix.ErrnoName(errno))
	if refusalAnswers && errno == unix.ECONNREFUSED {
		p.answered(slot, rtt)
	}
}

// echoOnce sends a packet from a new socket, and waits for its echo.
func (a *Agent) echoOnce(ctx context.Context, to netip.AddrPort, packet wire.Packet, timeout time.Duration) (echo wire.Packet, err error) {
	conn, err := a.dial(ctx, network("udp", to.Addr()), to)
	if err != nil {
		return echo, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return echo, err
	}
	// One byte more than a packet: a longer datagram is not a packet of a probe.
	b := make([]byte, wire.PacketSize+1)
	packet.Put(b)
	if _, err := conn.Write(b[:wire.PacketSize]); err != nil {
		return echo, err
	}
	packet.Kind = wire.ReplyPacket
	for {
		n, err := conn.Read(b)
		if err != nil {
			return echo, err
		}
		echo, err = wire.ParsePacket(b[:n])
		if packet.Server = echo.Server; err == nil && echo == packet {
			return echo, nil
		}
	}
}
