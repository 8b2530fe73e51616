// Package agent is the program at each end of a probe: it answers what other
// agents send, sends what the harness asks for, and reports both ten times a
// second over a control connection.
//
// One agent serves any number of control connections. What a connection
// started ends with it, so a harness that is killed leaves no traffic behind.
//
// Cost rules the design, because dozens of agents share the machine with the
// cluster under test. Senders wake at common multiples of their interval, so
// that the packets of many agents arrive together and one wake-up serves them
// all; replies are not waited for but read at the next tick, with the
// kernel's time stamp of their arrival; and nothing is allocated per packet.
package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Agent answers and sends. Open makes one.
type Agent struct {
	addr netip.Addr
	// echo is where requests arrive; replies come back to sender, which
	// nobody waits on.
	echo, sender *socket
	connect      *net.TCPListener
	timer        *timer
	loops        sync.WaitGroup
	// ctx ends when the agent closes.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	sessions map[*session]struct{}
	tx, rx   *batch
	// sent says which probe packet i of tx belongs to.
	sent [batchSize]*sending
	// drained is when the sender's socket was last read empty.
	drained   int64
	nextFlush int64
}

// Open binds the UDP echo port and the TCP port at address, the unspecified
// address for all of the pod's or host's, and starts to answer.
func Open(address netip.AddrPort) (*Agent, error) {
	if !address.Addr().Is4() {
		return nil, fmt.Errorf("opening agent at %s: want an IPv4 address", address)
	}
	a := &Agent{addr: address.Addr(), sessions: map[*session]struct{}{}, tx: newBatch(), rx: newBatch()}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	var err error
	if a.echo, err = listen(address, unix.IP_PKTINFO); err != nil {
		return nil, fmt.Errorf("opening echo port: %w", err)
	}
	if a.sender, err = listen(netip.AddrPortFrom(address.Addr(), 0), 0); err != nil {
		a.Close()
		return nil, fmt.Errorf("opening sender: %w", err)
	}
	if a.connect, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(address)); err != nil {
		a.Close()
		return nil, fmt.Errorf("opening TCP port: %w", err)
	}
	if a.timer, err = newTimer(); err != nil {
		a.Close()
		return nil, err
	}
	a.loops.Go(a.answer)
	a.loops.Go(a.accept)
	a.loops.Go(a.ticks)
	return a, nil
}

// Close stops answering and sending and ends every session.
func (a *Agent) Close() error {
	a.cancel()
	var errs []error
	if a.echo != nil {
		errs = append(errs, a.echo.Close())
	}
	if a.sender != nil {
		errs = append(errs, a.sender.Close())
	}
	if a.connect != nil {
		errs = append(errs, a.connect.Close())
	}
	if a.timer != nil {
		errs = append(errs, a.timer.Close())
	}
	a.loops.Wait()
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
		sessions.Go(func() { _ = a.Session(ctx, conn) }) // its reason went to the harness, if that still listens
	}
}

// answer sends requests back until the socket closes.
func (a *Agent) answer() {
	in, out := newBatch(), newBatch()
	refused := func(int, unix.Errno) {} // a reply that the kernel will not take is a reply lost: the sender notices
	step := func(fd uintptr) bool {
		n, errno := in.receive(fd)
		if errno != 0 {
			// EAGAIN waits for more; a pending ICMP error is nothing to us.
			return errno != unix.EAGAIN
		}
		replies := 0
		a.mu.Lock()
		for i := range n {
			p, err := in.packet(i)
			if err != nil || p.Kind != wire.RequestPacket {
				continue
			}
			meta := in.ancillary(i)
			a.seen(p, in.source(i), meta.ttl)
			p.Kind = wire.ReplyPacket
			out.put(replies, p, in.names[i])
			// The reply leaves from the address that was asked, whatever the
			// routing table would choose on a host with several.
			out.from(replies, meta.local)
			replies++
		}
		a.mu.Unlock()
		out.send(fd, replies, refused)
		return true
	}
	for a.echo.Read(step) == nil {
	}
}

// seen notes for every session that runs the packet's set that it arrived.
func (a *Agent) seen(p wire.Packet, source netip.Addr, ttl uint8) {
	for s := range a.sessions {
		if s.set != p.Set {
			continue
		}
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
		r.ttl.add(ttl)
	}
}

// maxSources bounds the pairs of probe and source address that one report
// names.
const maxSources = 4096

// accept takes TCP connections and holds each until its other end closes it,
// so that TIME_WAIT is the prober's and not the responder's.
func (a *Agent) accept() {
	for {
		conn, err := a.connect.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the connection died in the queue
		}
		a.loops.Go(func() {
			defer context.AfterFunc(a.ctx, func() { conn.Close() })()
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a prober that vanished says no goodbye
			_, _ = io.Copy(io.Discard, conn)
		})
	}
}

// ticks sends and reports whenever the timer says so, until it closes.
func (a *Agent) ticks() {
	for a.timer.Wait() == nil {
		a.mu.Lock()
		a.tick()
		a.mu.Unlock()
	}
}

func (a *Agent) tick() {
	now := wire.Monotonic()
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

// arm sets the timer to whatever is due first.
func (a *Agent) arm() {
	if len(a.sessions) == 0 {
		a.timer.Set(0)
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
	a.timer.Set(max(due, 1)) // 0 would disarm it
}

// next returns the first multiple of interval after now.
func next(now, interval int64) int64 { return (now/interval + 1) * interval }

// drain reads every reply that has arrived by now.
func (a *Agent) drain(now int64) {
	wall := time.Now().UnixNano()
	a.sender.Once(func(fd uintptr) {
		for {
			n, errno := a.rx.receive(fd)
			if errno == unix.EAGAIN || errno == unix.EBADF {
				return
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
				a.got(p, max(at-p.Sent, 0), meta.ttl)
			}
			if n < batchSize {
				return
			}
		}
	})
	a.drained = now
}

func (a *Agent) got(p wire.Packet, rtt int64, ttl uint8) {
	for s := range a.sessions {
		if s.set != p.Set {
			continue
		}
		if probe := s.probes[p.Probe]; probe != nil && probe.kind == wire.UDP {
			probe.answered(p.Slot, rtt)
			probe.ttl.add(ttl)
		}
	}
}

// send sends every packet that is due.
func (a *Agent) send() {
	n := 0
	now := wire.Monotonic()
	for s := range a.sessions {
		for _, p := range s.probes {
			if p.kind != wire.UDP || p.stopped || p.due() > now {
				continue
			}
			slot := p.take(now)
			a.tx.put(n, wire.Packet{Kind: wire.RequestPacket, Set: s.set, Probe: p.id, Slot: slot, Sent: now}, p.to)
			a.sent[n] = p
			if n++; n == batchSize {
				a.transmit(n)
				n, now = 0, wire.Monotonic()
			}
		}
	}
	a.transmit(n)
}

func (a *Agent) transmit(n int) {
	if n == 0 {
		return
	}
	a.sender.Once(func(fd uintptr) {
		a.tx.send(fd, n, func(i int, errno unix.Errno) { a.sent[i].refused(unix.ErrnoName(errno)) })
	})
}

// socket is a UDP socket that is read and written by raw system calls, while
// the Go runtime waits for it.
type socket struct {
	conn *net.UDPConn
	raw  syscall.RawConn
}

// listen opens a UDP socket that reports TTLs and, for extra, one more kind
// of ancillary data: IP_PKTINFO, or time stamps where extra is 0.
func listen(address netip.AddrPort, extra int) (*socket, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if extra != 0 {
			set = errors.Join(set, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, extra, 1))
		} else {
			set = errors.Join(set, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
		}
		set = errors.Join(set,
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1),
			// Everybody starts at the same TTL, whatever the sysctl of its
			// namespace says, so that 64 minus the received one is the
			// number of routers that were crossed.
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 64))
	})
	if err := errors.Join(err, set); err != nil {
		conn.Close()
		return nil, fmt.Errorf("setting options of the socket at %s: %w", address, err)
	}
	return &socket{conn: conn, raw: raw}, nil
}

// Read calls step, again whenever the socket is readable for as long as step
// says false.
func (s *socket) Read(step func(fd uintptr) bool) error { return s.raw.Read(step) }

// Once calls f with the descriptor; on a closed socket it does nothing.
func (s *socket) Once(f func(fd uintptr)) { _ = s.raw.Control(f) }

// Close closes the socket.
func (s *socket) Close() error { return s.conn.Close() }

// timer is a timerfd. The runtime's own timers are rounded to the
// milliseconds of epoll_wait, which makes two wake-ups of one.
type timer struct {
	file *os.File
	raw  syscall.RawConn
	read func(fd uintptr) bool
}

func newTimer() (*timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating timer: %w", err)
	}
	t := &timer{file: os.NewFile(uintptr(fd), "timerfd")}
	if t.raw, err = t.file.SyscallConn(); err != nil {
		t.file.Close()
		return nil, fmt.Errorf("creating timer: %w", err)
	}
	buf := new([8]byte)
	t.read = func(fd uintptr) bool { return readTimer(fd, buf) }
	return t, nil
}

// Wait waits until the time that Set named has come.
func (t *timer) Wait() error { return t.raw.Read(t.read) }

// Set has the timer fire at a time of CLOCK_MONOTONIC, or never for 0.
func (t *timer) Set(at int64) {
	_ = t.raw.Control(func(fd uintptr) { setTimer(fd, at) }) // closed: nobody waits either
}

// Close ends Wait.
func (t *timer) Close() error { return t.file.Close() }

// errStalled ends a session whose harness does not read.
var errStalled = errors.New("harness has not read its reports for 10s")

// maxStalled is for how many reports a harness may be behind.
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

// handle does what a request asks, and returns the epoch of a probe that it
// started.
func (a *Agent) handle(s *session, r wire.Request) (epoch int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.Op {
	case wire.Hello:
		s.reset()
		s.set = r.Set
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
		s.probes[p.id] = p
		if p.kind == wire.TCP {
			a.connectEvery(s, p, r.Probe.To, r.Probe.Timeout)
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
