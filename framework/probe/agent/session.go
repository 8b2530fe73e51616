package agent

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

type session struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
	answers chan wire.Message
	// reports is written under the agent's lock only, so that flush knows when there is room.
	reports chan wire.Message

	// The agent's lock guards what follows.
	set     uint64
	server  uint32 // this agent's number in the set
	probes  map[uint32]*sending
	seen    map[seenKey]*receiving
	still   [][2]int64
	stalled int
}

type seenKey struct {
	probe  uint32
	source netip.Addr
}

// receiving is what arrived of one probe from one source since the last report.
type receiving struct {
	slots wire.Runs
	ttl   ttls
}

// sending is a probe that starts here, with what happened since the last report.
type sending struct {
	id, server      uint32
	kind            wire.Protocol
	to              name
	epoch, interval int64
	next            uint32
	stopped         bool
	// quit ends the goroutine of a probe that is not UDP, and ended comes after that.
	quit  context.CancelFunc
	ended func()

	sent, answers wire.Runs
	rtt           []uint32
	errors        map[string]int
	logins        []wire.Answer
	// resolved and unresolved are for a DNS probe.
	resolved, unresolved wire.Runs
	// broken is for a stream.
	broken wire.Runs
}

// lead is the time between the answer to a start and the first packet: the
// harness knows of the probe before the far end can report it.
const lead = 50 * time.Millisecond

func newSending(p wire.Probe) *sending {
	interval := int64(p.Interval)
	return &sending{
		id: p.ID, server: p.Server, kind: p.Kind, to: sockaddr(p.To), interval: interval,
		// A multiple of the interval, for all agents alike: see the package's comment.
		epoch: next(wire.Monotonic()+int64(lead), interval),
		quit:  func() {}, ended: func() {},
	}
}

func (p *sending) due() int64 { return p.epoch + int64(p.next)*p.interval }

// take returns the slot to send at now, and skips the slots that are past.
func (p *sending) take(now int64) uint32 {
	slot := uint32((now - p.epoch) / p.interval)
	p.next = slot + 1
	p.sent.Add(slot)
	return slot
}

func (p *sending) answered(slot uint32, rtt int64) {
	p.answers.Add(slot)
	p.rtt = append(p.rtt, uint32(rtt/int64(time.Microsecond)))
}

// echoed notes an answer, unless another agent than the expected one has sent it.
func (p *sending) echoed(packet wire.Packet, rtt int64) {
	if p.server != 0 && packet.Server != 0 && packet.Server != p.server {
		p.refused(wire.WrongServer)
		return
	}
	p.answered(packet.Slot, rtt)
}

func (p *sending) refused(why string) {
	if p.errors == nil {
		p.errors = map[string]int{}
	}
	p.errors[why]++
}

func (p *sending) stop() {
	p.stopped = true
	p.quit()
	p.ended()
}

// report hands over what happened; the slices are the report's from then on.
func (p *sending) report() wire.Sender {
	r := wire.Sender{ID: p.id, Sent: p.sent, Got: p.answers, RTT: p.rtt, Errors: p.errors, Logins: p.logins,
		Resolved: p.resolved, Unresolved: p.unresolved, Broken: p.broken}
	p.resolved, p.unresolved, p.broken = nil, nil, nil
	p.sent, p.answers, p.errors, p.logins = nil, nil, nil, nil
	p.rtt = make([]uint32, 0, len(r.RTT))
	return r
}

func (p *sending) quiet() bool {
	return len(p.sent) == 0 && len(p.answers) == 0 && len(p.errors) == 0 && len(p.logins) == 0 &&
		len(p.resolved) == 0 && len(p.unresolved) == 0 && len(p.broken) == 0
}

// reset forgets the set, stops its probes, and drops its unsent reports: after the answer to a hello
// nothing of the last set is reported.
func (s *session) reset() {
	for len(s.reports) > 0 {
		select {
		case <-s.reports:
		default: // the writer was faster
		}
	}
	for _, p := range s.probes {
		p.stop()
	}
	s.set, s.server, s.probes, s.seen, s.still = 0, 0, map[uint32]*sending{}, map[seenKey]*receiving{}, nil
}

// flush reports what happened before now. A session that has not written its
// last reports yet keeps collecting.
func (s *session) flush(now int64) {
	if len(s.reports) == cap(s.reports) {
		if s.stalled++; s.stalled > maxStalled {
			s.cancel(errStalled)
		}
		return
	}
	s.stalled = 0
	report := &wire.Report{Still: s.still}
	s.still = nil
	for _, p := range s.probes {
		if !p.quiet() {
			report.Probes = append(report.Probes, p.report())
		}
	}
	for key, r := range s.seen {
		if len(r.slots) == 0 {
			delete(s.seen, key)
			continue
		}
		report.Seen = append(report.Seen, wire.Responder{ID: key.probe, Source: key.source, Seen: r.slots, TTL: r.ttl.report()})
		r.slots = nil
	}
	s.reports <- wire.Message{At: now, Report: report}
}

// connectTo returns an attempt to connect to the far end.
func (a *Agent) connectTo(s *session, p *sending, to netip.AddrPort, timeout time.Duration) func(slot uint32) {
	return func(slot uint32) {
		start := wire.Monotonic()
		// The session's context: an attempt under way outlives the stop.
		ctx, cancel := context.WithTimeout(s.ctx, timeout)
		defer cancel()
		conn, err := a.dial(ctx, network("tcp", to.Addr()), to)
		rtt := wire.Monotonic() - start
		a.mu.Lock()
		defer a.mu.Unlock()
		p.connected(conn, err, slot, rtt)
	}
}

// connected notes the result of a connect, and closes the connection.
func (p *sending) connected(conn net.Conn, err error, slot uint32, rtt int64) {
	if err == nil {
		conn.Close()
		p.answered(slot, rtt)
		return
	}
	p.noteRefusal(err, slot, rtt, false)
}

// attemptEvery makes an attempt once an interval, for as long as the probe
// runs. Attempts overlap where the far end is slow.
func (a *Agent) attemptEvery(s *session, p *sending, attempt func(slot uint32)) {
	ctx, cancel := context.WithCancel(s.ctx)
	p.quit = cancel
	s.workers.Go(func() {
		var attempts sync.WaitGroup
		defer attempts.Wait()
		timer := time.NewTimer(time.Duration(p.epoch - wire.Monotonic()))
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			a.mu.Lock()
			now := wire.Monotonic()
			if now < p.due() { // the runtime's timers may be early by a hair on this clock
				timer.Reset(time.Duration(p.due() - now))
				a.mu.Unlock()
				continue
			}
			slot := p.take(now)
			timer.Reset(time.Duration(p.due() - now))
			a.mu.Unlock()
			attempts.Go(func() { attempt(slot) })
		}
	})
}

// ttls counts packets by received TTL. Two or three values are the rule, so
// a short list beats a table.
type ttls []wire.TTL

func (t *ttls) add(ttl uint8) {
	for i := range *t {
		if (*t)[i][0] == uint32(ttl) {
			(*t)[i][1]++
			return
		}
	}
	*t = append(*t, wire.TTL{uint32(ttl), 1})
}

func (t *ttls) report() []wire.TTL {
	r := []wire.TTL(*t)
	*t = nil
	return r
}
