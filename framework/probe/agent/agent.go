// Package agent is the program at each end of a probe: it answers what other agents send, sends
// what the harness asks for, and reports both ten times a second over a control connection.
//
// One agent serves any number of control connections. What a connection
// started ends with it, so a harness that is killed leaves no traffic behind.
//
// Cost rules the design, because dozens of agents share the machine with the cluster under test.
// Senders wake at common multiples of their interval, so that the packets of many agents arrive
// together and one wake-up serves them all; replies are not waited for but read at the next tick,
// with the kernel's time stamp of their arrival; and nothing is allocated per packet.
package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/topology/each"
)

// Agent answers and sends. Open makes one.
type Agent struct {
	addr    netip.Addr
	sources sources
	// families are the sockets for IPv4, and for IPv6 if Open was called with v6.
	families []*family
	timer    *waiter
	loops    sync.WaitGroup
	// ctx ends when the agent closes.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	sessions map[*session]struct{}
	rx       *batch
	// drained is when the senders' sockets were last read empty.
	drained   int64
	nextFlush int64
	// ticked is when the agent last ran; zero while it has nothing to run for.
	ticked int64
}

// family are the sockets of an address family.
type family struct {
	// echo is where requests arrive. Replies come back to sender, a
	// descriptor that nobody waits on.
	echo    *waiter
	sender  int
	connect *net.TCPListener
	tx      *batch
	// sent are the probes of the next n packets of tx.
	sent [batchSize]*sending
	n    int
}

func openFamily(address netip.AddrPort) (f *family, err error) {
	f = &family{sender: -1, tx: newBatch()}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop(), f.close())
		}
	}()
	if f.echo, err = openEcho(address); err != nil {
		return f, fmt.Errorf("opening echo port %s: %w", address, err)
	}
	if f.sender, err = openSocket(netip.AddrPortFrom(address.Addr(), 0)); err != nil {
		return f, fmt.Errorf("opening socket to send from: %w", err)
	}
	if f.connect, err = net.ListenTCP(network("tcp", address.Addr()), net.TCPAddrFromAddrPort(address)); err != nil {
		return f, fmt.Errorf("opening TCP port: %w", err)
	}
	return f, nil
}

// network is the name of a protocol over the family of an address, for package net.
func network(protocol string, a netip.Addr) string {
	if a.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}

// stop ends what answers.
func (f *family) stop() error {
	var errs []error
	if f.echo != nil {
		errs = append(errs, f.echo.Close())
	}
	if f.connect != nil {
		errs = append(errs, f.connect.Close())
	}
	return errors.Join(errs...)
}

func (f *family) close() (err error) {
	if f.sender >= 0 {
		err = unix.Close(f.sender)
		f.sender = -1
	}
	return err
}

// Open binds the UDP echo port and the TCP port at address, the unspecified
// address for all of the pod's or host's, and starts to answer. With v6 it does so at all addresses of IPv6, too.
func Open(address netip.AddrPort, v6 bool) (*Agent, error) {
	if !address.Addr().Is4() {
		return nil, fmt.Errorf("opening agent at %s: want an IPv4 address", address)
	}
	a := &Agent{addr: address.Addr(), sessions: map[*session]struct{}{}, rx: newBatch()}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	at := []netip.AddrPort{address}
	if v6 {
		at = append(at, netip.AddrPortFrom(netip.IPv6Unspecified(), address.Port()))
	}
	for _, address := range at {
		f, err := openFamily(address)
		if err != nil {
			a.Close()
			return nil, err
		}
		a.families = append(a.families, f)
	}
	var err error
	if a.timer, err = openTimer(); err != nil {
		a.Close()
		return nil, fmt.Errorf("creating timer: %w", err)
	}
	for _, f := range a.families {
		a.loops.Go(func() { a.answer(f.echo) })
		a.loops.Go(func() { a.accept(f.connect) })
	}
	a.loops.Go(a.ticks)
	return a, nil
}

// Close stops answering and sending and ends every session.
func (a *Agent) Close() error {
	a.cancel()
	errs := each.Of(a.families, (*family).stop)
	if a.timer != nil {
		errs = append(errs, a.timer.Close())
	}
	a.loops.Wait()
	// Nothing waits on the senders' sockets: they close while nobody uses them, and later sessions find them so.
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.families {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// Serve takes control connections from l until ctx ends, and closes l.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			l.Close()
			return fmt.Errorf("accepting control connections at %s: %w", l.Addr(), err)
		}
		sessions.Go(func() { _ = a.Session(ctx, conn) }) // the harness has got the error, if it still listens
	}
}

func (a *Agent) answer(echo *waiter) {
	requests, out := newBatch(), newBatch()
	refused := func(int, unix.Errno) {} // a reply that the kernel refuses is lost: the sender notices
	echo.Each(func(fd int) {
		for {
			n, errno := requests.receive(fd)
			if errno != 0 {
				// EAGAIN, mostly. ICMP errors are kept from sockets that are not connected.
				return
			}
			wall, now := time.Now().UnixNano(), wire.Monotonic()
			var waited int64 // the longest wait of a packet
			replies := 0
			a.mu.Lock()
			for i := range n {
				p, err := requests.packet(i)
				if err != nil || p.Kind != wire.RequestPacket {
					continue
				}
				meta := requests.ancillary(i)
				if meta.stamp != 0 {
					waited = max(waited, wall-meta.stamp)
				}
				p.Server = a.seen(p, requests.source(i), meta.ttl)
				p.Kind = wire.ReplyPacket
				out.put(replies, p, requests.name(i))
				// The reply leaves from the address that was asked, whatever
				// the routing table would choose on a host with several.
				out.from(replies, meta.local)
				replies++
			}
			a.noteStill(now-waited, now)
			a.mu.Unlock()
			out.send(fd, replies, refused)
			if n < batchSize {
				return
			}
		}
	})
}

// seen notes for every session that runs the packet's set that it arrived, and returns the agent's
// number in the set. The TTL is zero where it is not known, as in a stream.
func (a *Agent) seen(p wire.Packet, source netip.Addr, ttl uint8) (server uint32) {
	for s := range a.sessions {
		if s.set != p.Set {
			continue
		}
		server = s.server
		key := seenKey{probe: p.Probe, source: source}
		r := s.seen[key]
		if r == nil {
			if len(s.seen) >= maxSources {
				continue
			}
			r = &receiving{}
			s.seen[key] = r
		}
		r.slots.Add(p.Slot)
		if ttl != 0 {
			r.ttl.add(ttl)
		}
	}
	return server
}

// maxSources bounds the pairs of probe and source address that one report names.
const maxSources = 4096

// accept takes TCP connections and leaves it to the prober to close them, so that TIME_WAIT is on its
// side. The packets of streams are sent back.
func (a *Agent) accept(from *net.TCPListener) {
	for {
		conn, err := from.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select { // out of descriptors: some are closed soon
			case <-a.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		a.loops.Go(func() {
			defer context.AfterFunc(a.ctx, func() { conn.Close() })()
			defer conn.Close()
			a.echoStream(conn)
		})
	}
}

// ticks sends and reports whenever the timer says so, until it closes.
func (a *Agent) ticks() {
	a.timer.Each(func(fd int) {
		if !expired(fd) {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.tick()
	})
}

func (a *Agent) tick() {
	now := wire.Monotonic()
	a.noteStandstill(now)
	a.drain(now)
	a.send()
	if now >= a.nextFlush {
		for s := range a.sessions {
			s.flush(now)
		}
		a.nextFlush = next(now, int64(wire.ReportInterval))
	}
	a.arm()
}

// noteStandstill tells every session if the agent has not run for long.
func (a *Agent) noteStandstill(now int64) {
	if a.ticked != 0 {
		a.noteStill(a.ticked, now)
	}
	a.ticked = now
}

// noteStill tells every session of a long time in which the agent did not run, or did not
// answer what had arrived.
func (a *Agent) noteStill(from, until int64) {
	if until-from <= int64(wire.Standstill) {
		return
	}
	for s := range a.sessions {
		s.still = append(s.still, [2]int64{from, until})
	}
}

func (a *Agent) arm() {
	if len(a.sessions) == 0 {
		a.ticked = 0
		a.timer.set(0)
		return
	}
	due := a.nextFlush
	for s := range a.sessions {
		for _, p := range s.probes {
			if p.kind == wire.UDP && !p.stopped {
				due = min(due, p.due())
			}
		}
	}
	a.timer.set(max(due, 1)) // 0 would disarm it
}

// next returns the first multiple of interval after now.
func next(now, interval int64) int64 { return (now/interval + 1) * interval }

// drain reads every reply that has arrived by now.
func (a *Agent) drain(now int64) {
	for _, f := range a.families {
		a.drainSocket(f.sender, now)
	}
	a.drained = now
}

func (a *Agent) drainSocket(sender int, now int64) {
	wall := time.Now().UnixNano()
	for n := batchSize; n == batchSize; {
		var errno unix.Errno
		if n, errno = a.rx.receive(sender); errno != 0 {
			break
		}
		for i := range n {
			p, err := a.rx.packet(i)
			if err != nil || p.Kind != wire.ReplyPacket {
				continue
			}
			meta := a.rx.ancillary(i)
			at := now
			if meta.stamp != 0 {
				// Between two reads the packet arrived: whatever the wall
				// clock was set to, it cannot have been outside of that.
				at = min(max(now-(wall-meta.stamp), a.drained), now)
			}
			a.got(p, max(at-p.Sent, 0))
		}
	}
}

func (a *Agent) got(p wire.Packet, rtt int64) {
	for s := range a.sessions {
		if s.set != p.Set {
			continue
		}
		if probe := s.probes[p.Probe]; probe != nil && probe.kind == wire.UDP {
			probe.echoed(p, rtt)
		}
	}
}

func (a *Agent) send() {
	now := wire.Monotonic()
	for s := range a.sessions {
		for _, p := range s.probes {
			if p.kind != wire.UDP || p.stopped || p.due() > now {
				continue
			}
			slot := p.take(now)
			f := a.families[p.to.family()]
			f.tx.put(f.n, wire.Packet{Kind: wire.RequestPacket, Set: s.set, Probe: p.id, Slot: slot, Sent: now}, p.to)
			f.sent[f.n] = p
			if f.n++; f.n == batchSize {
				f.transmit()
				now = wire.Monotonic()
			}
		}
	}
	for _, f := range a.families {
		f.transmit()
	}
}

func (f *family) transmit() {
	f.tx.send(f.sender, f.n, func(i int, errno unix.Errno) { f.sent[i].refused(unix.ErrnoName(errno)) })
	f.n = 0
}

// errStalled ends a session whose harness does not read.
var errStalled = errors.New("harness has not read its reports for 10s")

// maxStalled is how many reports the harness may leave unread.
const maxStalled = int(10 * time.Second / wire.ReportInterval)

// Session serves one control connection until it closes or ctx ends, and
// closes it. The error says why it ended, nil for the other end's leaving.
func (a *Agent) Session(ctx context.Context, rwc io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &session{ctx: ctx, cancel: cancel, answers: make(chan wire.Message), reports: make(chan wire.Message, 4)}
	defer context.AfterFunc(a.ctx, func() { cancel(net.ErrClosed) })()
	defer context.AfterFunc(ctx, func() { rwc.Close() })()
	s.workers.Go(func() {
		for {
			var m wire.Message
			select {
			case m = <-s.answers:
			case m = <-s.reports:
			case <-ctx.Done():
				return
			}
			if err := wire.Encode(rwc, m); err != nil {
				cancel(err)
			}
		}
	})
	defer func() {
		cancel(nil)
		rwc.Close()
		a.mu.Lock()
		s.reset()
		delete(a.sessions, s)
		a.arm()
		a.mu.Unlock()
		s.workers.Wait()
	}()
	lines := wire.Lines(rwc)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		r, err := wire.DecodeRequest(lines.Bytes())
		answer := wire.Message{N: r.N}
		if err == nil {
			answer.Epoch, err = a.handle(s, r)
		}
		if err != nil {
			answer.Error = err.Error()
		}
		answer.At = wire.Monotonic()
		select {
		case s.answers <- answer:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return lines.Err()
}

// attempt is what a probe does in each slot; nil for a UDP probe, whose packets ticks sends.
func (a *Agent) attempt(s *session, p *sending, probe wire.Probe) (func(slot uint32), error) {
	switch p.kind {
	case wire.TCP:
		return a.connectTo(s, p, probe.To, probe.Timeout), nil
	case wire.UDPFlow:
		return a.flowTo(s, p, probe), nil
	case wire.UDPConnected:
		return a.connectedTo(s, p, probe)
	case wire.Stream:
		t := a.newStream(s, p, probe.To, probe.Timeout)
		p.ended = func() { time.AfterFunc(probe.Timeout, t.close) } // replies under way still count
		return t.send, nil
	case wire.DNS:
		return a.lookUpAndConnect(s, p, probe)
	case wire.MySQL:
		return a.logInTo(s, p, probe)
	}
	return nil, nil
}

func (a *Agent) handle(s *session, r wire.Request) (epoch int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.Op {
	case wire.Hello:
		s.reset()
		s.set, s.server = r.Set, r.Server
		a.sessions[s] = struct{}{}
		a.arm()
	case wire.Start:
		if s.set == 0 {
			return 0, errors.New("start before hello")
		}
		if s.probes[r.Probe.ID] != nil {
			return 0, fmt.Errorf("probe %d is running already", r.Probe.ID)
		}
		p := newSending(*r.Probe)
		if p.to.family() >= len(a.families) {
			return 0, fmt.Errorf("probe %d: this agent speaks no IPv6, to reach %s", p.id, r.Probe.To)
		}
		attempt, err := a.attempt(s, p, *r.Probe)
		if err != nil {
			return 0, fmt.Errorf("probe %d: %w", p.id, err)
		}
		s.probes[p.id] = p
		if attempt != nil {
			a.attemptEvery(s, p, attempt)
		}
		a.arm()
		return p.epoch, nil
	case wire.Stop:
		p := s.probes[r.ID]
		if p == nil {
			return 0, fmt.Errorf("no probe %d", r.ID)
		}
		p.stop()
		a.arm()
	}
	return 0, nil
}
