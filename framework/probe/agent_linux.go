package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// Agent is the harness's end of a control connection to one agent.
type Agent struct {
	name string
	conn io.ReadWriteCloser
	// done is closed when the connection has ended. gone and why are set before it is closed.
	done chan struct{}
	gone time.Time
	why  error

	write sync.Mutex

	mu      sync.Mutex
	n       uint64
	pending map[uint64]func(reply)
	// owner is the set that uses the agent. set becomes the same when the agent has answered the
	// hello: reports that come before that are about the last set's probes.
	owner, set *Set
	// offset is the agent's clock minus this machine's, in nanoseconds.
	offset int64
}

// reply is an agent's answer and when it was read, by this machine's clock.
type reply struct {
	wire.Message
	read int64
}

// Dial connects to the agent that listens on a unix socket. The path may lead through another mount
// namespace (/proc/PID/root/...); the kernel takes 107 bytes at most.
func Dial(ctx context.Context, name, path string) (*Agent, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connecting to the probe agent of %s: %w", name, err)
	}
	return Connect(ctx, name, conn)
}

// Connect talks to an agent over any byte stream, which is closed with the
// Agent, and compares the clocks.
func Connect(ctx context.Context, name string, conn io.ReadWriteCloser) (*Agent, error) {
	a := &Agent{name: name, conn: conn, done: make(chan struct{}), pending: map[uint64]func(reply){}}
	go a.read()
	if err := a.compareClocks(ctx); err != nil {
		a.Close()
		return nil, fmt.Errorf("comparing clocks with the probe agent of %s: %w", name, err)
	}
	return a, nil
}

// Close ends the connection and with it every probe from this agent. That the
// agent has gone away before is no error.
func (a *Agent) Close() error {
	err := a.conn.Close()
	<-a.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// clockRounds is how many times the agent's clock is asked for. The fastest
// answer counts: among five there is one that nothing delayed.
const clockRounds = 5

// compareClocks finds out how far the agent's clock is from this machine's. Under one kernel they
// are the same clock. If the answers are compatible with that, the offset is taken to be zero.
func (a *Agent) compareClocks(ctx context.Context) error {
	best := int64(-1)
	for range clockRounds {
		before := wire.Monotonic()
		r, err := a.ask(ctx, wire.Request{Op: wire.Clock})
		if err != nil {
			return err
		}
		if rtt := r.read - before; best < 0 || rtt < best {
			best = rtt
			offset := r.At - before - rtt/2
			if max(offset, -offset) <= rtt/2+1 {
				offset = 0
			}
			a.mu.Lock()
			a.offset = offset
			a.mu.Unlock()
		}
	}
	return nil
}

func (a *Agent) time(at int64) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return wire.TimeOf(at - a.offset)
}

// answersWithin bounds how long an agent may take to answer a request. It does so
// at once when it runs; one that does not run must not hold up the harness.
const answersWithin = 30 * time.Second

func (a *Agent) ask(ctx context.Context, r wire.Request) (reply, error) {
	return a.askThen(ctx, r, func(reply) {})
}

// askThen does then with the answer, unless it is an error, before anything
// that the agent says later is evaluated.
func (a *Agent) askThen(ctx context.Context, r wire.Request, then func(reply)) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answersWithin, fmt.Errorf("it has said nothing for %s", answersWithin))
	defer cancel()
	answer := make(chan reply, 1)
	a.mu.Lock()
	a.n++
	r.N = a.n
	a.pending[r.N] = func(m reply) {
		if m.Error == "" {
			then(m)
		}
		answer <- m
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.pending, r.N)
		a.mu.Unlock()
	}()
	if err := a.send(ctx, r); err != nil {
		return reply{}, fmt.Errorf("asking the probe agent of %s to %s: %w", a.name, r.Op, err)
	}
	select {
	case m := <-answer:
		if m.Error != "" {
			return reply{}, fmt.Errorf("asking the probe agent of %s to %s: it says: %s", a.name, r.Op, m.Error)
		}
		return m, nil
	case <-a.done:
		return reply{}, fmt.Errorf("asking the probe agent of %s to %s: %w", a.name, r.Op, a.why)
	case <-ctx.Done():
		return reply{}, fmt.Errorf("asking the probe agent of %s to %s: no answer: %w", a.name, r.Op, context.Cause(ctx))
	}
}

func (a *Agent) send(ctx context.Context, r wire.Request) error {
	a.write.Lock()
	defer a.write.Unlock()
	// A write that blocks can only be ended by closing the stream: half a line
	// may have been written already.
	defer context.AfterFunc(ctx, func() { a.conn.Close() })()
	return wire.Encode(a.conn, r)
}

func (a *Agent) read() {
	lines := wire.Lines(a.conn)
	var err error
	for err == nil && lines.Scan() {
		read := wire.Monotonic()
		var m wire.Message
		if m, err = wire.DecodeMessage(lines.Bytes()); err != nil {
			break
		}
		a.mu.Lock()
		answer, set := a.pending[m.N], a.set
		delete(a.pending, m.N)
		a.mu.Unlock()
		switch {
		case m.Report != nil && set != nil:
			err = set.add(a, a.time(m.At), m.Report)
		case m.N != 0 && answer != nil:
			answer(reply{m, read})
		}
	}
	a.conn.Close()
	a.gone = time.Now()
	a.why = cmp.Or(errors.Join(err, lines.Err()), errors.New("the connection was closed"))
	close(a.done)
	a.mu.Lock()
	set := a.set
	a.mu.Unlock()
	if set != nil {
		set.left(a)
	}
}

// join makes the agent report to a set, and to no other.
func (a *Agent) join(ctx context.Context, s *Set) error {
	a.mu.Lock()
	if a.owner != nil && a.owner != s {
		a.mu.Unlock()
		return fmt.Errorf("the probe agent of %s is busy with another set: stop that first", a.name)
	}
	a.owner = s
	a.mu.Unlock()
	_, err := a.askThen(ctx, wire.Request{Op: wire.Hello, Set: s.id, Server: s.number(a)}, func(reply) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.set = s
	})
	if err != nil {
		a.leave(s)
	}
	return err
}

func (a *Agent) leave(s *Set) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owner == s {
		a.owner, a.set = nil, nil
	}
}
